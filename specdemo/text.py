"""Tokens to text while they arrive: no split characters, and nothing of a stop string is ever shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what decoders put for bytes that are not a character (yet)


class TextStream:
    """Incremental detokenisation of one answer, one piece of text per token.

    ``"".join(pieces)`` over the whole answer equals ``decode(all tokens)``, cut before the first stop string. A
    character split over several tokens belongs to the token that completes it. A piece is released once no later
    token can take it back: text that may be the beginning of a stop string waits.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self.text = ""
        self._decode, self._stop = decode, tuple(stop)
        # Decoded alone, a token would lose its leading space or be a broken character. So it is decoded behind the
        # tokens of the piece before it: window = those (their text is known), then tokens without text so far.
        self._window: list[int] = []
        self._known = 0
        self._ends: list[int] = []  # per token, the length of self.text after its piece
        self._released = 0

    def push(self, token: int) -> bool:
        """Add a token. True when the text now contains a stop string; it must be the last token then."""
        self._window.append(token)
        new = self._pending()
        if new.endswith(UNFINISHED):
            new = ""
        elif new:
            self._window = self._window[self._known :]
            self._known = len(self._window)
        self.text += new
        stopped = self._cut_at_stop(len(new))
        self._ends.append(len(self.text))
        return stopped

    def release(self, finish: bool = False) -> tuple[str, ...]:
        """Pieces that are final now, following those released before; all of them when the answer is finished."""
        if finish and self._ends and self._window[self._known :]:
            self.text += self._pending()  # the answer ends inside a character
            self._ends[-1] = len(self.text)
        limit = len(self.text) - (0 if finish else self._held())
        pieces = []
        while self._released < len(self._ends) and self._ends[self._released] <= limit:
            start = self._ends[self._released - 1] if self._released else 0
            pieces.append(self.text[start : self._ends[self._released]])
            self._released += 1
        return tuple(pieces)

    def _pending(self) -> str:
        """Text of the window's tokens that are not in ``self.text`` yet."""
        return self._decode(self._window)[len(self._decode(self._window[: self._known])) :]

    def _cut_at_stop(self, new: int) -> bool:
        """Look for a stop string that ends in the last ``new`` characters and cut the text before it."""
        if not new:
            return False
        found = [self.text.find(s, max(0, len(self.text) - new - len(s) + 1)) for s in self._stop]
        found = [at for at in found if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self._ends = [min(end, len(self.text)) for end in self._ends]
            self._window = self._window[: self._known]  # nothing after the stop string may come back
        return bool(found)

    def _held(self) -> int:
        """Length of the longest end of the text that may become a stop string."""
        return max(
            (n for s in self._stop for n in range(1, len(s)) if self.text.endswith(s[:n])),
            default=0,
        )
