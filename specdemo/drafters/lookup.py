"""What the drafters that copy have in common: they propose the text that followed the same words before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specdemo.types import Proposal, Rng, Rows, Verified


class Index(Protocol):
    """Finds, in a growing text, where its present end has occurred before."""

    def append(self, token: int) -> None:
        """The text grows by a token."""
        ...

    def continuation(self, k: int) -> list[int]:
        """Up to ``k`` tokens that followed an earlier occurrence of the present end; none if the end is new."""
        ...


class Lookup:
    """A drafter that copies. Its proposals are certain (point masses), so they cost no arithmetic at all."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def catch_up(self, verified: Verified) -> Rows | None:
        """Index the committed tokens; note what would have been proposed for each of them."""
        asked, proposed = verified.probs is not None, []
        for token in verified.tokens:
            if asked:
                proposed.append(next(iter(self.index.continuation(1)), -1))
            self.index.append(token)
        return Rows(tokens=tuple(proposed)) if asked else None

    def propose(self, k: int, rng: Rng) -> Proposal:
        """Copy up to ``k`` tokens."""
        return Proposal(tuple(self.index.continuation(k)))

    def observe(self, verified: Verified) -> None:
        """Nothing to learn."""


def copy(text: Sequence[int], at: int, k: int) -> list[int]:
    """``k`` tokens from position ``at``. They will follow the text, so past its end the copy copies itself."""
    copied: list[int] = []
    while len(copied) < k:
        i = at + len(copied)
        copied.append(text[i] if i < len(text) else copied[i - len(text)])
    return copied
