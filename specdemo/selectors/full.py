"""What selectors with full information share: when to evaluate all arms, and that nothing evaluated is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.selectors.base import BaseSelector, Floats, within
from specdemo.types import Information, RoundFeedback


class FullInformation(BaseSelector):
    """Every arm's acceptance at every committed position, brought by an evaluation every ``period`` rounds."""

    information: ClassVar[Information] = "full"

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, period: int = 1) -> None:
        super().__init__(arms, lengths, rng)
        within("period", period, 1)
        self.period, self.since = period, 0  # rounds since the last evaluation

    def due(self) -> bool:
        """After every ``period``-th round."""
        return self.since + 1 >= self.period

    def update(self, feedback: RoundFeedback) -> None:
        """Learn from an evaluation, if there was one."""
        self.since += 1
        if feedback.acceptance is not None:
            assert feedback.ratio is not None
            self.since = 0
            self.learn(feedback.acceptance, feedback.ratio, feedback.calibration)

    def learn(self, a: Floats, r: Floats, factors: Floats | None = None) -> None:
        """All positions since the last evaluation, a and r: [positions, arms]; ``factors``: calibration by depth."""
        raise NotImplementedError
