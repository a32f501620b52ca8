"""What selectors with full information share: when to evaluate all arms, and that nothing evaluated is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.selectors.base import BaseSelector, Floats
from specdemo.selectors.pace import Pace
from specdemo.types import Information, RoundFeedback


class FullInformation(BaseSelector):
    """Every arm's acceptance at every committed position, brought by an evaluation now and then (pace.py)."""

    information: ClassVar[Information] = "full"

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, pace: Pace) -> None:
        super().__init__(arms, lengths, rng)
        self.pace = pace

    def due(self) -> bool:
        """As the pace is."""
        return self.pace.due()

    def update(self, feedback: RoundFeedback) -> None:
        """Learn from an evaluation, if there was one."""
        evaluated = feedback.acceptance is not None
        plain_ms = 0.0 if feedback.round_ms is None else float(feedback.round_ms[0, 0])
        self.pace.passed(evaluated, feedback.arm >= 0, feedback.feedback_ms / plain_ms if plain_ms > 0 else 0.0)
        if feedback.acceptance is not None:
            assert feedback.ratio is not None
            self.learn(feedback.acceptance, feedback.ratio, feedback.calibration)

    def learn(self, a: Floats, r: Floats, factors: Floats | None = None) -> None:
        """All positions since the last evaluation, a and r: [positions, arms]; ``factors``: calibration by depth."""
        raise NotImplementedError
