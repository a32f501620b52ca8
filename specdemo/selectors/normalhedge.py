"""NormalHedge (Chaudhuri, Freund, Hsu 2009, arXiv 0903.2851): hedging without a learning rate."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class NormalHedge:
    """Weights over N experts from their regrets; scale-free, so losses need no particular range.

    With x_i = max(0, R_i) the scale c solves ``(1/N) sum_i exp(x_i^2 / (2c)) = e``, and
    ``w_i ~ (x_i / c) exp(x_i^2 / (2c))``; uniform while no regret is positive.
    """

    def __init__(self, experts: int) -> None:
        self.regret = np.zeros(experts)

    def weights(self) -> Floats:
        """[N] probabilities."""
        x = np.maximum(self.regret, 0)
        top = x.max(initial=0)
        if top <= 1e-12:
            return np.full(len(x), 1 / max(1, len(x)))
        x = x / top
        c = _scale(x)
        w: Floats = x * np.exp(x * x / (2 * c))
        return w / float(w.sum())

    def update(self, loss: Floats) -> None:
        """[N] losses of one step: regret grows by the mixture's loss minus the expert's."""
        self.regret += self.weights() @ loss - loss


def _scale(x: Floats) -> float:
    """Solve for c by bisection, given max(x) = 1.

    The largest term alone gives c >= 1 / (2 ln(1 + N(e - 1))), the case of one positive x; all x = 1 gives c <= 1/2.
    """
    low, high = 1 / (2 * math.log(1 + len(x) * (math.e - 1))), 0.5
    for _ in range(60):
        c = (low + high) / 2
        if np.mean(np.exp(x * x / (2 * c))) > math.e:
            low = c
        else:
            high = c
    return high
