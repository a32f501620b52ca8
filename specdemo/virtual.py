"""Every arm's rounds along the text so far, as rounds report them: for display and regret, never for choices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.estimators import Floats, VirtualRounds
from specdemo.types import Evaluated


class Virtual:
    """Two counts of the rounds that every arm alone would have begun: as teacher forcing says, and calibrated.

    A round begins at the first position, and wherever another one has ended before (see
    :class:`specdemo.estimators.VirtualRounds`); the last one may end beyond the text, as a real one is cut short.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._plain, self._calibrated = VirtualRounds(lengths), VirtualRounds(lengths)
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
