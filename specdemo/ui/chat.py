"""What the form says, as a Request; and the conversation it belongs to."""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specdemo.types import Message, Request, Sampling, SpecdemoError
from specdemo.ui.backend import Ask
from specdemo.ui.stream import Answer

LONGEST_DRAFT, LONGEST_ANSWER = 8, 2048  # tokens: what one visitor of a shared page may ask for
SETTINGS: dict[str, Any] = {
    "system": "",
    "raw": False,
    "pool": "",
    "selector": "hedgespec",
    "options": "",
    "k": 5,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "max_new_tokens": 128,
    "seed": 0,
    "stop": "",
    "check": False,
}
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
_INTEGERS = ("k", "top_k", "max_new_tokens", "seed")


@dataclass
class Turn:
    """What was asked, and the answer so far. ``ids`` are the answer's tokens."""

    prompt: str
    raw: bool
    answer: Answer = field(default_factory=Answer)
    run_id: str | None = None

    @property
    def ids(self) -> tuple[int, ...]:
        """Token ids of the answer."""
        return tuple(token for r in self.answer.rounds for token in r.tokens)


@dataclass
class Chat:
    """A conversation: its turns, and what was said before them if a stored run is continued.

    ``pending`` is what was asked and not begun; ``stop`` ends the running answer within one round.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    turns: list[Turn] = field(default_factory=list)
    before: tuple[Message, ...] = ()
    memory: tuple[tuple[int, ...], ...] = ()
    names: list[str] = field(default_factory=list)
    pending: Ask | None = None
    running: bool = False
    stop: threading.Event = field(default_factory=threading.Event)

    def begin(self, asked: Ask, prompt: str) -> None:
        """Open the turn of an Ask; turns that got no answer leave."""
        self.turns = [turn for turn in self.turns if turn.answer.rounds]
        self.turns.append(Turn(prompt, asked.request.prompt is not None, Answer(self.names)))
        self.pending, self.stop = asked, threading.Event()

    def messages(self) -> list[Message]:
        """The conversation so far, without turns that have no answer."""
        said = list(self.before)
        for turn in self.turns:
            if not turn.raw and turn.answer.text:
                said += [Message("user", turn.prompt), Message("assistant", turn.answer.text)]
        return said

    def remembered(self) -> tuple[tuple[int, ...], ...]:
        """Token ids of earlier answers, for drafters that copy from them."""
        return (*self.memory, *(turn.ids for turn in self.turns if turn.ids))


def ask(chat: Chat, prompt: str, form: Mapping[str, Any], session: str) -> Ask:
    """The form's settings as an Ask that continues the conversation.

    Raises:
        SpecdemoError: which field cannot be used, and why.
    """
    if not isinstance(prompt, str) or not prompt.strip():
        raise SpecdemoError("The prompt is empty. Type something, or take one of the examples.")
    numbers = {name: _number(name, form[name]) for name in (*_FLOATS, *_INTEGERS)}
    whole = {name: _whole(name, numbers.pop(name)) for name in _INTEGERS}
    for name, most in (("k", LONGEST_DRAFT), ("max_new_tokens", LONGEST_ANSWER)):
        if whole[name] > most:
            raise SpecdemoError(f"{_label(name)} is {whole[name]}; on this page it can be at most {most}.")
    system = [Message("system", form["system"])] if (form["system"] or "").strip() else []
    request = Request(
        messages=() if form["raw"] else (*system, *chat.messages(), Message("user", prompt)),
        prompt=prompt if form["raw"] else None,
        selector=form["selector"],
        options=_options(form["options"]),
        k=whole["k"],
        max_new_tokens=whole["max_new_tokens"],
        sampling=Sampling(top_k=whole["top_k"], **numbers),
        seed=whole["seed"],
        stop=_stops(form["stop"]),
        memory=chat.remembered(),
    )
    return Ask(request, form["pool"], bool(form["check"]), session)


def form_of(asked: Ask) -> dict[str, Any]:
    """The form that gives this Ask: what a stored run was made with."""
    request = asked.request
    sampling = {name: getattr(request.sampling, name) for name in (*_FLOATS, "top_k")}
    return (
        SETTINGS
        | sampling
        | {
            "system": next((m.content for m in request.messages if m.role == "system"), ""),
            "raw": request.prompt is not None,
            "pool": asked.pool,
            "selector": request.selector,
            "options": json.dumps(dict(request.options)) if request.options else "",
            "k": request.k,
            "max_new_tokens": request.max_new_tokens,
            "seed": request.seed,
            "stop": "\n".join(s.replace("\\", "\\\\").replace("\n", "\\n") for s in request.stop),
            "check": asked.check,
        }
    )


def chat_of(asked: Ask) -> Chat:
    """The conversation a stored run belongs to, its own turn (still unanswered) last."""
    request = asked.request
    said = [m for m in request.messages if m.role != "system"]
    prompt = request.prompt if request.prompt is not None else said[-1].content
    chat = Chat(before=tuple(said[:-1]), memory=request.memory)
    chat.turns.append(Turn(prompt, request.prompt is not None, Answer(chat.names)))
    return chat


def _label(name: str) -> str:
    return {"k": "K", "max_new_tokens": "Max new tokens"}.get(name, name.replace("_", " ").capitalize())


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise SpecdemoError(f"{_label(name)} is {'empty' if value is None else value}; it must be a number.")
    return value


def _whole(name: str, value: float) -> int:
    if value != int(value):
        raise SpecdemoError(f"{_label(name)} is {value}; it must be a whole number.")
    return int(value)


def _stops(text: str | None) -> tuple[str, ...]:
    """One stop string a line; \\n and \\t stand for a newline and a tab, \\\\ for a backslash."""
    escapes = {"\\": "\\", "n": "\n", "t": "\t"}
    stops = []
    for line in (text or "").split("\n"):
        first, *rest = line.split("\\\\")
        parts = [p.replace("\\n", escapes["n"]).replace("\\t", escapes["t"]) for p in (first, *rest)]
        stops.append("\\".join(parts))
    return tuple(s for s in stops if s)


def _options(text: str | None) -> dict[str, Any]:
    if not (text or "").strip():
        return {}
    try:
        options = json.loads(text or "")
    except ValueError as error:
        raise SpecdemoError(f'The selector options are not JSON: {error}. Example: {{"rate": 0.5}}') from None
    if not isinstance(options, dict):
        raise SpecdemoError('The selector options must be a JSON object, such as {"rate": 0.5}.')
    return options
