"""NormalHedge (Chaudhuri, Freund, Hsu 2009, arXiv 0903.2851): hedging without a learning rate."""

from __future__ import annotations

import math

import numpy as np

from specdemo.selectors.base import Floats


class NormalHedge:
    """Weights over N experts from their regrets; scale-free, so losses need no particular range.

    With x_i = max(0, R_i) the scale c solves ``(1/N) sum_i exp(x_i^2 / (2c)) = e``, and
    ``w_i ~ (x_i / c) exp(x_i^2 / (2c))``; uniform while no regret is positive.

    Args:
        experts: N.
        discount: what is left of a regret a step later (1: all); 0.95 follows domains that change every 60 tokens.
    """

    def __init__(self, experts: int, discount: float = 1.0) -> None:
        self.regret, self.discount = np.zeros(experts), discount
        self._z = (
            math.inf
        )  # 1 / (2c) of the last solution, in units of the largest regret: where the next search starts

    def weights(self) -> Floats:
        """[N] probabilities."""
        x = np.maximum(self.regret, 0)
        top = x.max(initial=0)
        if top <= 1e-12:
            return np.full(len(x), 1 / max(1, len(x)))
        x /= top
        square = x * x - 1
        self._z = _solve(square, self._z)
        w: Floats = x * np.exp(self._z * square)
        w /= w.sum()
        return w

    def update(self, loss: Floats) -> None:
        """[N] losses of one step: regret grows by the mixture's loss minus the expert's."""
        mixture = self.weights() @ loss
        self.regret *= self.discount
        self.regret += mixture - loss


def _solve(square: Floats, z: float) -> float:
    """Solve mean(exp(z x^2)) = e for z = 1 / (2c), given x^2 - 1 <= 0 with maximum 0.

    Newton's method on ln mean exp(z x^2) - 1, which is convex and grows with z: from anywhere it comes to the right of
    the root in one step and then falls to it. The largest term alone bounds z by ln(1 + N (e - 1)): start and limit.
    """
    n = len(square)
    limit = math.log(1 + n * (math.e - 1))
    z = min(z, limit)
    for _ in range(50):
        e = np.exp(z * square)
        total = float(e.sum())
        step = (z + math.log(total / n) - 1) / (1 + float(e @ square) / total)
        z = min(z - step, limit)
        if abs(step) <= 1e-10 * z:
            break
    return z
