"""Fixed share (Herbster and Warmuth 1998): Hedge for experts that change."""

from __future__ import annotations

import numpy as np

from specdemo.selectors.base import Floats


class FixedShare:
    """``w_i <- (1 - alpha) w_i exp(-eta l_i) / sum + alpha / N``: no expert ever falls below alpha / N.

    Args:
        experts: N.
        eta: learning rate for losses in [0, 1]. 1 to 4 in simulations; from 8 on, the noise of overlapping windows is
            stronger than the share, and the weights follow it.
        alpha: share given away in every step, about 1 / (steps between changes).
    """

    def __init__(self, experts: int, eta: float = 2.0, alpha: float = 0.01) -> None:
        self.eta, self.alpha = eta, alpha
        self._w: Floats = np.full(experts, 1 / max(1, experts))

    def weights(self) -> Floats:
        """[N] probabilities."""
        return self._w

    def update(self, loss: Floats) -> None:
        """[N] losses of one step."""
        w: Floats = self._w * np.exp(-self.eta * (loss - loss.min(initial=np.inf)))
        w *= (1 - self.alpha) / w.sum()
        self._w = w + self.alpha / len(w)
