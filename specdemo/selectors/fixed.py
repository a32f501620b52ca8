"""One drafter for the whole answer."""

from collections.abc import Sequence

import numpy as np

from specdemo.selectors.base import BaseSelector
from specdemo.types import SpecdemoError


class Fixed(BaseSelector):
    """Always the same drafter: what a user without a selector has.

    Args:
        arm: its name; the pool's first arm if empty.
    """

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, arm: str = "") -> None:
        super().__init__(arms, lengths, rng)
        if arm and arm not in self.arms and self.arms:
            raise SpecdemoError(f"The pool has no arm named {arm!r}. It has: {', '.join(self.arms)}.")
        self.chosen = self.arms.index(arm) if arm in self.arms else 0

    def choose(self) -> int:
        """The one arm."""
        return self.chosen
