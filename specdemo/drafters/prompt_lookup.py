"""Prompt lookup: n-grams of the context (Saxena 2023, "prompt lookup decoding")."""

from __future__ import annotations

from specdemo.drafters.lookup import Lookup, copy
from specdemo.types import DraftContext, DrafterStart, SpecdemoError, Target


class NGrams:
    """Latest earlier occurrence of the last ``longest``, ..., ``shortest`` tokens, the longest match first."""

    def __init__(self, longest: int, shortest: int) -> None:
        self.text: list[int] = []
        self._sizes = range(longest, shortest - 1, -1)
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> position of the token that followed it last

    def append(self, token: int) -> None:
        """The n-grams that ended the text are now followed by ``token``."""
        for gram in self._ends():
            self._after[gram] = len(self.text)
        self.text.append(token)

    def continuation(self, k: int) -> list[int]:
        """How the longest known n-gram went on."""
        found = (self._after[gram] for gram in self._ends() if gram in self._after)
        at = next(found, None)
        return [] if at is None else copy(self.text, at, k)

    def _ends(self) -> list[tuple[int, ...]]:
        return [tuple(self.text[-n:]) for n in self._sizes if n <= len(self.text)]


def load(target: Target, *, longest: int = 3, shortest: int = 1) -> DrafterStart:
    """Prompt lookup with n-grams of ``shortest`` to ``longest`` tokens."""
    if not 1 <= shortest <= longest:
        raise SpecdemoError(f"prompt-lookup: n-gram sizes {shortest} to {longest} make no sense; try 1 to 3.")

    def start(context: DraftContext) -> Lookup:
        return Lookup(NGrams(longest, shortest))

    return start
