"""AdaHedge (de Rooij, van Erven, Grünwald, Koolen 2014, JMLR 15): Hedge that finds its own rate."""

from __future__ import annotations

import math

import numpy as np

from specdemo.selectors.base import Floats
from specdemo.selectors.hedge import exponential


class AdaHedge:
    """``w_i ~ exp(-eta L_i)`` with ``eta = ln N / D``, D the sum of mixability gaps so far.

    The gap of a step is ``w.l + (1 / eta) ln sum_i w_i exp(-eta l_i)`` >= 0. While D = 0 the leaders share the weight.
    """

    def __init__(self, experts: int) -> None:
        self.loss, self.gap = np.zeros(experts), 0.0

    def weights(self) -> Floats:
        """[N] probabilities."""
        if self.gap <= 0 or len(self.loss) < 2:
            leads: Floats = (self.loss <= self.loss.min(initial=np.inf) + 1e-12).astype(float)
            leads /= leads.sum()
            return leads
        return exponential(self.loss, math.log(len(self.loss)) / self.gap)

    def update(self, loss: Floats) -> None:
        """[N] losses of one step."""
        w = self.weights()
        self.gap += max(0.0, float(w @ loss) - self._mix(w, loss))
        self.loss += loss

    def _mix(self, w: Floats, loss: Floats) -> float:
        """The mix loss, -(1 / eta) ln sum w exp(-eta l); the smallest loss that has weight, at eta = infinity."""
        least = float(loss[w > 0].min())
        if self.gap <= 0 or len(w) < 2:
            return least
        eta = math.log(len(w)) / self.gap
        with np.errstate(over="ignore"):  # losses below the least have no weight
            return least - math.log(float(w @ np.exp(-eta * np.maximum(loss - least, 0)))) / eta
