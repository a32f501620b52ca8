"""What every selector starts from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from specdemo.types import Information, RoundFeedback, Snapshot, SpecdemoError

Floats = NDArray[np.float64]
Known = tuple[float | None, ...]


class BaseSelector:
    """State shared by selectors: the arms' names, their draft lengths, and a private generator.

    Subclasses take their options as keyword arguments after these three; options and their defaults are read from the
    constructor, the one-line summary from the docstring. State begins anew with every answer.

    Attributes:
        prompt: token ids of the prompt, set before the first choice, for selectors that read it.
    """

    information: ClassVar[Information] = "none"
    prompt: tuple[int, ...] = ()

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator) -> None:
        self.arms, self.lengths, self.rng = tuple(arms), np.array(lengths, dtype=float), rng
        self.chosen = -1

    @classmethod
    def offered(cls, arms: Sequence[str]) -> bool:
        """Whether it works for these arms without options; a list without options leaves it out if not."""
        return True

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


def draw(weights: Floats, rng: np.random.Generator) -> int:
    """An index drawn in proportion to the weights."""
    total = weights.cumsum()
    return min(int(total.searchsorted(rng.random() * total[-1], "right")), len(total) - 1)


def largest(values: Floats, rng: np.random.Generator) -> int:
    """Index of the largest value, ties by lot."""
    best = np.flatnonzero(values == values.max())
    return int(best[0] if len(best) == 1 else rng.choice(best))


def known(values: Floats, which: NDArray[np.bool_]) -> Known:
    """The values as a tuple, None where they are not known."""
    return tuple(v if k else None for v, k in zip(values.tolist(), which.tolist(), strict=True))


def one_of(option: str, value: str, allowed: Sequence[str]) -> None:
    """Check an option.

    Raises:
        SpecdemoError: the value is not one of those allowed.
    """
    if value not in allowed:
        raise SpecdemoError(f"{option} is {value!r}; choose one of: {', '.join(allowed)}.")


def within(option: str, value: float, low: float, high: float = np.inf) -> None:
    """Check an option.

    Raises:
        SpecdemoError: the value does not lie in [low, high].
    """
    if not low <= value <= high:
        rule = f"at least {low:g}" if high == np.inf else f"between {low:g} and {high:g}"
        raise SpecdemoError(f"{option} is {value:g}; it must be {rule}.")
