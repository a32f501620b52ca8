"""Selectors that know what nobody can know: yardsticks of simulations, not for real runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specdemo.selectors.base import BaseSelector
from specdemo.selectors.fixed import Fixed
from specdemo.types import RoundFeedback


class OracleStatic(Fixed):
    """The arm that is best for the whole text, known beforehand.

    Args:
        best: its index.
    """

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, best: int) -> None:
        super().__init__(arms, lengths, rng, tuple(arms)[best])


class OracleDynamic(BaseSelector):
    """The arm that is best at every position, known beforehand.

    Args:
        best: [positions] its index (-1: plain decoding).
    """

    def __init__(
        self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, best: NDArray[np.int64]
    ) -> None:
        super().__init__(arms, lengths, rng)
        self.best, self.position = best, 0

    def choose(self) -> int:
        """The best arm here."""
        self.chosen = int(self.best[self.position])
        return self.chosen

    def update(self, feedback: RoundFeedback) -> None:
        """Move on."""
        self.position += feedback.accepted + 1
