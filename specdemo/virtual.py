"""Every arm's rounds along the text so far, as rounds report them: for display and regret, never for choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.estimators import Floats, VirtualRounds
from specdemo.types import Evaluated


class CalibratedRounds:
    """:class:`specdemo.estimators.VirtualRounds` with an acceptance of its own at every depth of a draft.

    With x_j at depth j: ``rho = p_K + sum_{j<K} (1 - x_j) p_j ;  p_j <- x_{j-1} p_{j-1} ;  p_0 <- rho``.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        k = np.array(lengths, dtype=int)[:, None]
        depths = np.arange(max(lengths, default=0) + 1)
        self._drafted = depths[:-1] < k  # [arms, depth] where a draft token stands
        self._p = np.zeros((len(k), len(depths)))
        self._p[:, 0] = 1.0

    def push(self, x: Floats) -> Floats:
        """Add one committed position, x [arms, longest draft]; returns rho [arms], the rounds that end with it."""
        inside = self._p[:, :-1] * self._drafted
        rho: Floats = self._p.sum(1) - inside.sum(1) + ((1 - x) * inside).sum(1)
        self._p[:, 1:] = inside * x
        self._p[:, 0] = rho
        return rho


class Virtual:
    """Two counts of the rounds that every arm alone would have begun: as teacher forcing says, and calibrated.

    A round begins at the first position, and wherever another one has ended before; the last one may end beyond the
    text, as a real one is cut short.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._plain, self._calibrated = VirtualRounds(lengths), CalibratedRounds(lengths)
        self._begins = np.ones((2, len(lengths)))  # probability that a round begins at the next position

    def push(self, acceptance: Floats, ratio: Floats, factors: Floats) -> Evaluated:
        """The next positions of the text: a and r [positions, arms], calibration [arms, depth]."""
        begun = np.zeros_like(self._begins)
        for r in ratio:
            begun += self._begins
            self._begins[0] = self._plain.push(r)
            self._begins[1] = self._calibrated.push(np.minimum(1, r[:, None] * factors))
        mean = acceptance.mean(0) if len(acceptance) else np.zeros(acceptance.shape[1])
        plain, calibrated = (tuple(row.tolist()) for row in begun)
        return Evaluated(len(ratio), tuple(mean.tolist()), plain, calibrated)
