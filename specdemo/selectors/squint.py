"""Squint (Koolen and van Erven 2015, arXiv 1502.08009): weights from regrets and their variances."""

from __future__ import annotations

import math

import numpy as np

from specdemo.selectors.base import Floats


class Squint:
    """``w_i ~ xi(R_i, V_i)``, R the regrets and V the sums of their squares, for losses in [0, 1].

    ``xi(R, V) = int_0^{1/2} exp(eta R - eta^2 V) d eta``: all learning rates at once. The rate is capped at 1/2, which
    makes it slow on short answers.
    """

    def __init__(self, experts: int) -> None:
        self.regret, self.variance = np.zeros(experts), np.zeros(experts)

    def weights(self) -> Floats:
        """[N] probabilities."""
        log_xi = np.array(
            [log_evidence(r, v) for r, v in zip(self.regret.tolist(), self.variance.tolist(), strict=True)]
        )
        w: Floats = np.exp(log_xi - log_xi.max(initial=-np.inf))
        w /= w.sum()
        return w

    def update(self, loss: Floats) -> None:
        """[N] losses of one step."""
        regret = self.weights() @ loss - loss
        self.regret += regret
        self.variance += regret * regret


def log_evidence(r: float, v: float) -> float:
    """ln xi(r, v). The Gaussian integral ``exp(r^2/4v) sqrt(pi/4v) [erf(r/2s) - erf((r-v)/2s)]``, s = sqrt v, in
    logarithms, since both of its factors leave the range of numbers; without variance, ``(exp(r/2) - 1) / r``."""
    if v < 1e-10:
        x = r / 2 - v / 4
        if abs(x) < 1e-10:
            return x / 2 - math.log(2)
        return max(x, 0.0) + math.log(-math.expm1(-abs(x)) / (2 * abs(x)))
    s = math.sqrt(v)
    return r * r / (4 * v) + 0.5 * math.log(math.pi / (4 * v)) + _log_erf_between((r - v) / (2 * s), r / (2 * s))


def _log_erf_between(low: float, high: float) -> float:
    """ln(erf(high) - erf(low)), low < high."""
    if high < 0:
        low, high = -high, -low
    if low <= 0:
        return math.log(math.erf(high) - math.erf(low))
    near, far = _log_erfc(low), _log_erfc(high)
    return near + math.log(-math.expm1(far - near))


def _log_erfc(x: float) -> float:
    """ln erfc(x), x >= 0; beyond 20 from its asymptotic series (to 1e-11), as erfc itself becomes 0 at 27."""
    if x <= 20:
        return math.log(math.erfc(x))
    y = 1 / (2 * x * x)
    return -x * x - math.log(x * math.sqrt(math.pi)) + math.log(1 - y + 3 * y**2 - 15 * y**3 + 105 * y**4)
