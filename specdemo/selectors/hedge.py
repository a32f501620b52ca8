"""Hedge (Freund and Schapire 1997): exponential weights."""

from __future__ import annotations

import math

import numpy as np

from specdemo.selectors.base import Floats


class Hedge:
    """``w_i ~ exp(-eta L_i)``, L the sums of losses in [0, 1].

    Args:
        experts: N.
        eta: learning rate; 0 is the anytime rate ``sqrt(8 ln N / t)`` at step t = 1, 2, ... (regret within a factor 2
            of sqrt(T ln N / 2), the bound of the best fixed rate, sqrt(8 ln N / T)).
    """

    def __init__(self, experts: int, eta: float = 0.0) -> None:
        self.loss, self.eta, self.steps = np.zeros(experts), eta, 0

    def weights(self) -> Floats:
        """[N] probabilities."""
        eta = self.eta or math.sqrt(8 * math.log(max(1, len(self.loss))) / (self.steps + 1))
        return exponential(self.loss, eta)

    def update(self, loss: Floats) -> None:
        """[N] losses of one step."""
        self.loss += loss
        self.steps += 1


def exponential(loss: Floats, eta: float) -> Floats:
    """Weights ~ exp(-eta loss)."""
    w: Floats = np.exp(-eta * (loss - loss.min(initial=np.inf)))
    w /= w.sum()
    return w
