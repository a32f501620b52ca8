"""Suffix lookup: the longest end of the text that has occurred before (SuffixDecoding, arXiv 2411.04975)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from specdemo.drafters.lookup import Lookup, copy
from specdemo.types import DraftContext, DrafterStart, SpecdemoError, Target

NO_TOKEN = -1  # stands between two texts of the memory: nothing is matched or copied across it


class SuffixAutomaton:
    """Every substring of a growing text as a path from state 0 (Blumer et al. 1985), O(1) amortised per token.

    A state stands for substrings that end at the same positions: ``length`` of the longest, ``link`` to the state of
    its longest suffix that also ends elsewhere, ``end``: where it ended when the text was last here.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self.next: list[dict[int, int]] = [{}]
        self.length, self.link, self.end = [0], [-1], [0]
        self.last = 0

    def append(self, token: int) -> None:
        """Extend the text. ``last`` then stands for the whole text, ``link[last]`` for its longest repeated suffix."""
        self._touch()
        self.text.append(token)
        new = self._state(len(self.text), {})
        state = self.last
        while state >= 0 and token not in self.next[state]:
            self.next[state][token] = new
            state = self.link[state]
        if state < 0:
            self.link[new] = 0
        else:
            known = self.next[state][token]
            self.link[new] = known if self.length[known] == self.length[state] + 1 else self._split(state, token)
        self.last = new

    def walk(self, state: int, matched: int, token: int) -> tuple[int, int]:
        """Longest suffix of (what ``state`` matched, then ``token``) that occurs in this text: its state and length."""
        while state and token not in self.next[state]:
            state = self.link[state]
            matched = self.length[state]
        if token not in self.next[state]:
            return 0, 0
        return self.next[state][token], matched + 1

    def _touch(self) -> None:
        """The text moves on: its present suffixes have all ended here (a short chain, O(log n) in practice)."""
        state = self.last
        while state > 0:
            self.end[state] = len(self.text)
            state = self.link[state]

    def _split(self, state: int, token: int) -> int:
        """The short substrings of a state get one of their own, because they now also end where the long do not."""
        known = self.next[state][token]
        clone = self._state(self.length[state] + 1, dict(self.next[known]))
        self.link[clone], self.end[clone] = self.link[known], self.end[known]
        self.link[known] = clone
        while state >= 0 and self.next[state].get(token) == known:
            self.next[state][token] = clone
            state = self.link[state]
        return clone

    def _state(self, length: int, following: dict[int, int]) -> int:
        self.next.append(following)
        self.length.append(length)
        self.link.append(0)
        self.end.append(len(self.text))
        return len(self.length) - 1


class Suffixes:
    """Longest match of the text's end: in the text itself, or in earlier answers, whichever is longer."""

    def __init__(self, shortest: int, memory: Sequence[Sequence[int]]) -> None:
        self._shortest, self._own, self._earlier = shortest, SuffixAutomaton(), SuffixAutomaton()
        for answer in memory:
            for token in (*answer, NO_TOKEN):
                self._earlier.append(token)
        self._state, self._matched = 0, 0  # the end of the text, in the earlier answers

    def append(self, token: int) -> None:
        """The text grows by a token."""
        self._own.append(token)
        self._state, self._matched = self._earlier.walk(self._state, self._matched, token)

    def continuation(self, k: int) -> list[int]:
        """What followed the longest match, at its latest occurrence."""
        state = self._own.link[self._own.last]
        own = self._own.length[state] if state > 0 else 0
        if self._matched > own and self._matched >= self._shortest:
            at = self._earlier.end[self._state]
            followed = list(takewhile(lambda token: token != NO_TOKEN, self._earlier.text[at : at + k]))
            if followed:
                return followed
        return copy(self._own.text, self._own.end[state], k) if own >= self._shortest else []


def load(target: Target, *, shortest: int = 1, memory: bool = False) -> DrafterStart:
    """Suffix lookup in the context and, with ``memory``, in the session's earlier answers.

    Args:
        shortest: matches of fewer tokens propose nothing.
    """
    if shortest < 1:
        raise SpecdemoError(f"suffix: the shortest match is {shortest}; it must be at least 1.")

    def start(context: DraftContext) -> Lookup:
        return Lookup(Suffixes(shortest, context.memory if memory else ()))

    return start
