"""What rounds cost, from running means of measured times.

A selector that maximises speed needs the time of a round of every arm with every draft length before it chooses. Times
are the only thing that outlives an answer: the next one of the same pool starts from them, and goes on measuring.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

RATE = 0.1  # weight of a new measurement, once there are ten
DOUBT = 0.25
OUTLIER = 3.0  # a measurement counts for at most so many times the mean


@dataclass(slots=True)
class Mean:
    """An exponential running mean.

    The first value warms up: it is all that is known until there is a second, then it is forgotten. Later ones weigh
    1/2, 1/3, ... and finally ``RATE``; one above ``OUTLIER`` means counts as that much (the machine did something else
    for a moment; if the cost really has grown, the mean follows in a few steps).
    """

    value: float = 0.0
    count: int = 0
    outlier: float = OUTLIER

    def add(self, x: float) -> None:
        """One more measurement."""
        if self.count < 2:
            self.value = x
        else:
            self.value += max(RATE, 1 / self.count) * (min(x, self.outlier * self.value) - self.value)
        self.count += 1


@dataclass(slots=True)
class Line:
    """``ms = fixed + per_token * n``, least squares with the weights of :class:`Mean`.

    What lengths of one size cannot tell is taken to be per token (``DOUBT`` tokens squared of belief in that). Neither
    part is ever below zero.
    """

    ms: Mean = field(default_factory=Mean)
    n: float = 0.0
    nn: float = 0.0
    n_ms: float = 0.0

    def add(self, n: int, ms: float) -> None:
        """A draft of n tokens took so long."""
        weight = 1.0 if self.ms.count < 2 else max(RATE, 1 / self.ms.count)
        ms = ms if self.ms.count < 2 else min(ms, OUTLIER * max(self(n), self.ms.value))
        self.ms.add(ms)
        self.n += weight * (n - self.n)
        self.nn += weight * (n * n - self.nn)
        self.n_ms += weight * (n * ms - self.n_ms)

    def __call__(self, n: int) -> float:
        """Expected time of a draft of n tokens."""
        if self.n <= 0 or n <= 0:
            return 0.0
        spread, steepest = self.nn - self.n**2, self.ms.value / self.n
        slope = (self.n_ms - self.n * self.ms.value + DOUBT * steepest) / (max(spread, 0.0) + DOUBT)
        slope = min(max(slope, 0.0), steepest)
        return self.ms.value + slope * (n - self.n)


class Times:
    """Measured times of a pool's arms, by name.

    Attributes:
        draft: drafting, reading of the text not counted. ``read``: an arm's reading of text before it drafts.
        verify: a target forward and the verdict, of a chain (False) or a tree (True).
        evaluation: all arms judged once. ``learning``, ``other``: of a round.
    """

    def __init__(self) -> None:
        self.draft: dict[str, Line] = defaultdict(Line)
        self.read: dict[str, Mean] = defaultdict(partial(Mean, outlier=math.inf))  # nothing to read, or a lot
        self.verify: dict[bool, Mean] = defaultdict(Mean)
        self.evaluation, self.learning, self.other = Mean(), Mean(), Mean()
        self.measuring = True

    @classmethod
    def fixed(cls, verify_ms: float, draft_ms: Mapping[str, float], evaluation_ms: float = 0.0) -> Times:
        """Times that are given, not measured, so that choices do not depend on the clock. ``draft_ms``: per token."""
        times = cls()
        times.verify[False].add(verify_ms)
        times.evaluation.add(evaluation_ms)
        for name, ms in draft_ms.items():
            times.draft[name].add(1, ms)
        times.measuring = False
        return times

    def unknown(self, name: str) -> bool:
        """Whether an arm's drafting is still to be measured."""
        return self.measuring and name not in self.draft

    def drafted(self, name: str, k: int, ms: float) -> None:
        """An arm has drafted ``k`` tokens."""
        if self.measuring:
            self.draft[name].add(k, ms)

    def caught_up(self, name: str, ms: float) -> None:
        """An arm has read what it had not, because it was to draft."""
        if self.measuring:
            self.read[name].add(ms)

    def verified(self, tree: bool, ms: float) -> None:
        """A draft was verified."""
        if self.measuring:
            self.verify[tree].add(ms)

    def evaluated(self, ms: float) -> None:
        """All arms were judged."""
        if self.measuring:
            self.evaluation.add(ms)

    def ended(self, learn_ms: float, other_ms: float) -> None:
        """A round is over."""
        if self.measuring:
            self.learning.add(learn_ms)
            self.other.add(other_ms)

    def round_ms(self, arms: Sequence[tuple[str, bool]], longest: int) -> NDArray[np.float64]:
        """[arms, longest + 1] expected time of a round of each arm (name, whether it drafts trees) with each draft
        length, without evaluation.

        Column 0 is plain decoding. An arm that was never measured is taken to draft for nothing: it gets its chance.
        """
        common = self.learning.value + self.other.value
        table = np.empty((len(arms), longest + 1))
        for i, (name, tree) in enumerate(arms):
            read = self.read[name].value if name in self.read else 0.0
            draft = [self.draft[name](k) for k in range(1, longest + 1)] if name in self.draft else [0.0] * longest
            table[i, 0] = self._verify(False) + common
            table[i, 1:] = np.array(draft) + read + self._verify(tree) + common
        return table

    def _verify(self, tree: bool) -> float:
        known = tree if tree in self.verify else not tree
        return self.verify[known].value if known in self.verify else 0.0


class Clock:
    """Milliseconds. Every lap ends in a read of device results, so no work is still in flight when it is taken."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()

    def lap(self) -> float:
        """Time since the last lap."""
        last, self._last = self._last, time.perf_counter()
        return 1000 * (self._last - last)

    def total(self) -> float:
        """Time from the start to the last lap."""
        return 1000 * (self._last - self._start)
