"""All that the page needs from the rest of the package, as one small contract: live.py keeps it, tests script it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from specdemo.types import Request, Round

Status = Literal["running", "finished", "stopped", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Option:
    """A choice of a dropdown: its key, one line that explains it, and the options it takes with their defaults."""

    name: str
    about: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt to try, and the domain it belongs to."""

    domain: str
    prompt: str


@dataclass(frozen=True, slots=True)
class Source:
    """A drafter as the legend shows it: name, what it is good at, its colours on a light and a dark page ("": any)."""

    name: str
    about: str = ""
    colour: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Team:
    """The drafters of a pool, their mean acceptance lengths by domain, and how those were measured.

    ``strengths``: drafter -> domain -> tokens per round; empty where nobody has measured them.
    """

    sources: tuple[Source, ...]
    strengths: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """State of a pool, in words, too. ``fraction``: how much of the loading is done, None if nobody knows."""

    state: Literal["unloaded", "loading", "ready", "failed"]
    text: str = ""
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """What a visitor wants: a request to a pool, ``check``-ed against plain decoding or not, in a browser session."""

    request: Request
    pool: str
    check: bool = False
    session: str = ""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Measured speed of plain decoding in tokens per second, and of what it was measured, in words."""

    speed: float
    of: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The run is about to start, and is stored under this id (None: nothing is being stored). ``sources`` can draft in
    it, none in plain decoding; ``baseline`` is the last measured plain speed, if there is one."""

    run_id: str | None
    sources: tuple[Source, ...]
    baseline: Baseline | None = None


@dataclass(frozen=True, slots=True)
class Checking:
    """Plain decoding is writing the same answer again; ``tokens`` so far."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of the comparison with plain decoding, in words; ``identical`` is None where it does not apply."""

    identical: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the run ended, what plain decoding was measured at (None: not yet), the check if one was asked for, and the
    error of a stored run that failed."""

    status: Status
    baseline: Baseline | None = None
    check: Check | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A run read back from the store."""

    run_id: str
    ask: Ask
    sources: tuple[Source, ...]
    rounds: Sequence[Round]
    outcome: Outcome


Event = Begun | Round | Checking | Outcome


class Backend(Protocol):
    """The rest of the package, as the page sees it. Errors a visitor can act on are SpecdemoErrors."""

    def pools(self) -> Sequence[Option]:
        """Pools to choose from, the default first."""
        ...

    def selectors(self) -> Sequence[Option]:
        """Selectors to choose from, the default first."""
        ...

    def examples(self) -> Sequence[Example]:
        """Prompts to try."""
        ...

    def team(self, pool: str) -> Team:
        """Who drafts in a pool, and how well."""
        ...

    def load(self, pool: str) -> None:
        """Load a pool and warm it up; returns when it can answer, at once if it already can. Call it in the lane."""
        ...

    def readiness(self, pool: str) -> Readiness:
        """How far loading is."""
        ...

    def answer(self, ask: Ask, stop: threading.Event) -> Iterator[Event]:
        """One run: Begun, its Rounds as they come, Checking now and then if asked for, Outcome. Ends within one round
        after ``stop`` is set, with the status "stopped"."""
        ...

    def stored(self, run_id: str) -> Stored | None:
        """A run from the store, None if there is no such run."""
        ...

    def problem(self) -> str | None:
        """Why runs are not being stored, None if they are."""
        ...
