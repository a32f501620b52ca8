"""What every selector starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.types import Information, RoundFeedback, Snapshot


class BaseSelector:
    """State shared by selectors: the arms' names, their draft lengths, and a private generator.

    Subclasses take their options as keyword arguments after these three; options and their defaults are read from the
    constructor, the one-line summary from the docstring.
    """

    information: ClassVar[Information] = "none"

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator) -> None:
        self.arms, self.lengths, self.rng = tuple(arms), np.array(lengths, dtype=float), rng
        self.chosen = -1

    def choose(self) -> int:
        """Index of the arm that drafts next; -1 for plain decoding."""
        raise NotImplementedError

    def draft_length(self, arm: int) -> int:
        """The arm's own."""
        return int(self.lengths[arm])

    def due(self) -> bool:
        """After every round."""
        return True

    def update(self, feedback: RoundFeedback) -> None:
        """Learn from the round."""

    def snapshot(self) -> Snapshot:
        """Without learning there is only the choice to show."""
        nothing = (None,) * len(self.arms)
        return Snapshot("choice", tuple(float(i == self.chosen) for i in range(len(self.arms))), nothing, nothing)
