"""Rounds to page values: strings that only ever grow at their end, so that each update costs what is new in it.

An answer travels as five columns, read by static/view.js:

* ``t``: the pieces of text, each ended by U+001F (U+001E is the escape character).
* ``s``: one character per token: who proposed it, "0" the target, "1" the first source, ... (base 36).
* ``b``: per round ``accepted/drafted,``. ``p``: per token the target's probability, then a comma. ``q``: the
  drafter's, nothing for the target's own tokens.

``t`` may lag behind the others: the text of a token is final only when no later token can change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdemo.types import Round
from specdemo.ui.backend import Baseline, Source
from specdemo.ui.palette import colour

SEP, ESC = "\x1f", "\x1e"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
PLAIN = ("–", "this run is plain decoding")
COLUMNS = ("t", "s", "b", "p", "q")


def clean(text: str) -> str:
    """The text with lone surrogates replaced: they cannot be sent, and would end the page's stream."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def columns(rounds: Iterable[Round], marks: str) -> dict[str, str]:
    """The columns of some rounds; ``marks[arm]`` is the character of an arm's drafter. The columns of two stretches of
    rounds, joined, are the columns of both."""
    rounds = list(rounds)
    return {
        "t": "".join(_piece(piece) for r in rounds for piece in r.pieces),
        "s": "".join((marks[r.arm] if r.accepted else "") * r.accepted + "0" for r in rounds),
        "b": "".join(f"{r.accepted}/{r.drafted}," for r in rounds),
        "p": "".join(f"{p:.3g}," for r in rounds for p in r.p),
        "q": "".join("".join(f"{r.draft_q[i]:.3g}," for i in r.path[: r.accepted]) + "," for r in rounds),
    }


def _piece(text: str) -> str:
    return clean(text).replace(ESC, ESC + "0").replace(SEP, ESC + "1") + SEP


@dataclass
class Answer:
    """An answer as far as it is written.

    Attributes:
        names: drafters of this conversation, in the order of their characters (1, 2, ...).
        sources: of these, the ones that could draft in this run.
    """

    names: list[str] = field(default_factory=list)
    sources: tuple[Source, ...] = ()
    rounds: list[Round] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=lambda: dict.fromkeys(COLUMNS, ""))
    accepted: int = 0
    drafted: int = 0
    _marks: str = ""

    def add(self, rounds: Sequence[Round]) -> None:
        """Append rounds."""
        for r in rounds:
            if r.start:
                self._marks = "".join(self.mark(name) for name in r.start.drafters)
        for key, text in columns(rounds, self._marks).items():
            self.columns[key] += text
        self.rounds += rounds
        self.accepted += sum(r.accepted for r in rounds)
        self.drafted += sum(r.drafted for r in rounds)

    def mark(self, name: str) -> str:
        """The character of a drafter; a new one joins the conversation's."""
        if name not in self.names:
            self.names.append(name)
        return DIGITS[1 + self.names.index(name) % (len(DIGITS) - 1)]

    @property
    def tokens(self) -> int:
        """Committed tokens: one per round is the target's own."""
        return self.accepted + len(self.rounds)

    @property
    def text(self) -> str:
        """All text that is final."""
        return "".join(piece for r in self.rounds for piece in r.pieces)

    @property
    def speed(self) -> float | None:
        """Tokens per second of decoding, as specdemo.metrics defines it."""
        ms = self.rounds[-1].at_ms if self.rounds else 0.0
        return 1000 * self.tokens / ms if ms else None


def legend(answer: Answer) -> list[dict[str, Any]]:
    """One entry per drafter of the run, and the target's: character, name, note, colours, tokens so far."""
    entries = [
        {
            "c": answer.mark(s.name),
            "name": s.name,
            "about": s.about,
            "colour": list(colour(s, answer.names.index(s.name))),
        }
        for s in answer.sources
    ]
    own = {"c": "0", "name": "target", "about": "the model's own tokens: every round ends with one", "colour": []}
    return [{**entry, "n": answer.columns["s"].count(str(entry["c"]))} for entry in [*entries, own]]


def facts(answer: Answer, baseline: Baseline | None) -> list[list[str]]:
    """The numbers above the text: label, value, definition."""
    rounds, speed = len(answer.rounds), answer.speed
    start = answer.rounds[0].start if answer.rounds else None
    apart = (
        f" Not counted: prompt read in {start.prefill_ms:.0f} ms, compiled in {start.compile_ms:.0f} ms."
        if start
        else ""
    )
    return [
        ["tokens/s", _number(speed, 1), "committed tokens / time of the rounds." + apart],
        [
            "acceptance length",
            _number(answer.tokens / rounds if rounds else None, 2),
            "tokens per round, the target's own included",
        ],
        [
            "drafts kept",
            _percent(answer.accepted, answer.drafted),
            "accepted / drafted tokens, the target's own not counted",
        ],
        ["rounds", str(rounds), "target forwards after the prompt; plain decoding needs one per token"],
        ["tokens", str(answer.tokens), "written so far"],
        ["against plain", *(PLAIN if start and not start.arms else _against(speed, baseline))],
    ]


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "–"


def _against(speed: float | None, baseline: Baseline | None) -> tuple[str, str]:
    if baseline is None:
        return (
            "not measured",
            "switch “check against plain decoding” on: it measures plain decoding of the same request",
        )
    value = "–" if speed is None else f"{speed / baseline.speed:.2f}×"
    return value, f"plain decoding: {baseline.speed:.1f} tokens/s, {baseline.of}"


def slower(answer: Answer, baseline: Baseline | None) -> str | None:
    """In plain words: this run was slower than plain decoding. None if it was not, or nobody knows."""
    if not (baseline and answer.speed and answer.drafted and answer.speed < baseline.speed):
        return None
    return (
        f"Slower than plain decoding: {answer.speed:.1f} against {baseline.speed:.1f} tokens/s ({baseline.of}). "
        "Drafting cost more time than the accepted tokens saved."
    )
