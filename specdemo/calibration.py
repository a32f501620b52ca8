"""How far drafts fall behind what teacher forcing says, depth by depth.

Teacher-forced, a head sees the target's own features of every token before a position. While it drafts, it sees its own
predictions from the second token on, and a drafter that copies goes on with the copy it began. So the acceptance that
is estimated on committed text is too good (or, for copies, sometimes too bad) deep in a draft. The arm that drafts
shows both numbers at the same positions, in every round.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STRENGTH = 4.0  # positions' worth of belief in the family's factor, and in 1 for the family


class Calibration:
    """Factors [arms, depth] by which acceptance in a draft differs from the teacher-forced estimate at that position.

    With R and E the sums, over the positions at depth j of an arm's own drafts, of realised and estimated acceptance::

        family_j = (sum_arms R_j + s) / (sum_arms E_j + s) ;  factor_j = (R_j + s family_j) / (E_j + s)

    so an arm that never drafted has its family's factor, and a drafter for which teacher forcing is exact (a language
    model) keeps 1 to the last digit. Only positions up to the first rejection count: the same for both.

    Args:
        lengths: draft length of each arm. ``families``: of each arm; heads of one family fall behind alike.
    """

    def __init__(self, lengths: Sequence[int], families: Sequence[str], strength: float = STRENGTH) -> None:
        self.realised = np.zeros((len(lengths), max(lengths, default=0)))
        self.estimated = np.zeros_like(self.realised)
        self.strength = strength
        names = list(dict.fromkeys(families))
        self._family = np.array([[f == name for name in names] for f in families], dtype=float)
        self._waiting: list[tuple[int, int, Floats]] = []

    def drafted(self, arm: int, position: int, realised: Floats) -> None:
        """A draft began at a position of the text. ``realised`` [n]: probability that its token at each depth is
        accepted, up to the first that was not (see :func:`specdemo.feedback.draft_acceptance`)."""
        self._waiting.append((arm, position, realised))

    def judged(self, first: int, acceptance: Floats) -> None:
        """Estimates [positions, arms] of all positions from ``first`` on are known now."""
        for arm, position, realised in self._waiting:
            n, at = len(realised), position - first
            self.realised[arm, :n] += realised
            self.estimated[arm, :n] += acceptance[at : at + n, arm]
        self._waiting.clear()

    def factors(self) -> Floats:
        """[arms, depth]."""
        s, groups = self.strength, self._family
        if not groups.size:
            return np.ones_like(self.realised)
        family = groups @ ((groups.T @ self.realised + s) / (groups.T @ self.estimated + s))
        factors: Floats = (self.realised + s * family) / (self.estimated + s)
        return factors
