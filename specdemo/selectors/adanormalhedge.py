"""AdaNormalHedge (Luo and Schapire 2015, arXiv 1502.05934): NormalHedge with a potential in closed form."""

from __future__ import annotations

import numpy as np

from specdemo.selectors.base import Floats


class AdaNormalHedge:
    """Weights from regrets R and their absolute sums C, for losses in [0, 1].

    ``w_i ~ Phi(R_i + 1, C_i + 1) - Phi(R_i - 1, C_i + 1)``, ``Phi(R, C) = exp(max(0, R)^2 / (3C))``; C + 1 in both.
    """

    def __init__(self, experts: int) -> None:
        self.regret, self.size = np.zeros(experts), np.zeros(experts)

    def weights(self) -> Floats:
        """[N] probabilities; uniform if no potential differs."""
        scale = 3 * (self.size + 1)
        high = np.maximum(self.regret + 1, 0) ** 2 / scale
        low = np.maximum(self.regret - 1, 0) ** 2 / scale
        top = high.max(initial=0)
        w: Floats = np.exp(high - top) - np.exp(low - top)
        total = float(w.sum())
        return w / total if total > 0 else np.full(len(w), 1 / max(1, len(w)))

    def update(self, loss: Floats) -> None:
        """[N] losses of one step."""
        regret = self.weights() @ loss - loss
        self.regret += regret
        self.size += np.abs(regret)
