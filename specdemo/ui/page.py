"""The whole value of the answer view: conversation, legend, numbers, status and messages. Drawn by static/view.js."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from specdemo.ui.backend import Baseline, Checking, Example, Outcome, Stored
from specdemo.ui.chat import Chat, Turn, chat_of
from specdemo.ui.stream import clean, facts, legend, slower

State = Literal["idle", "waiting", "running", "done"]
UNKNOWN = -1.0  # progress that nobody can put a number on
SPOKEN = 40  # tokens between two updates of the status line: it is read aloud by screen readers
FINISH = {
    "eos": "the model ended its answer",
    "stop": "a stop string was reached",
    "length": "the token limit was reached",
    "context": "the context window is full",
}
ENDINGS = {
    "running": "Still being written; reload the page to see more",
    "stopped": "Stopped",
    "interrupted": "Interrupted: the program that wrote it ended",
    "failed": "Failed",
}


@dataclass
class Scene:
    """What the page shows around the conversation. ``notices``: (kind, text), kind "error", "warn", "ok" or "info"."""

    state: State = "idle"
    status: str = ""
    progress: float | None = None
    notices: list[tuple[str, str]] = field(default_factory=list)
    baseline: Baseline | None = None


def page(chat: Chat, scene: Scene, problem: str | None = None, examples: list[Example] | None = None) -> dict[str, Any]:
    """Everything the view draws. Strings of a turn only grow while it is written."""
    last = chat.turns[-1] if chat.turns else None
    shown = last is not None and bool(last.answer.sources or last.answer.rounds)  # has it begun?
    notices = [("warn", f"Runs are not being stored: {problem}"), *scene.notices] if problem else scene.notices
    return {
        "chat": chat.id,
        "state": scene.state,
        "status": clean(scene.status),
        "progress": scene.progress,
        "notices": [[kind, clean(text)] for kind, text in notices],
        "before": [[m.role, clean(m.content)] for m in chat.before],
        "turns": [_turn(chat, i, turn) for i, turn in enumerate(chat.turns)],
        "legend": legend(last.answer) if last and shown else [],
        "facts": facts(last.answer, scene.baseline) if last and shown else [],
        "run": last.run_id if last else None,
        "examples": [[e.domain, e.prompt] for e in examples or []],
    }


def _turn(chat: Chat, index: int, turn: Turn) -> dict[str, Any]:
    return {"id": f"{chat.id}-{index}", "raw": turn.raw, "prompt": clean(turn.prompt), **turn.answer.columns}


def writing(turn: Turn) -> str:
    """Status while an answer is written: changes rarely, on purpose."""
    tokens = turn.answer.tokens // SPOKEN * SPOKEN
    return f"Writing, {tokens} tokens so far" if tokens else "Writing"


def checking(event: Checking) -> str:
    """Status while plain decoding writes the same answer."""
    tokens = event.tokens // SPOKEN * SPOKEN
    return f"Checking: plain decoding writes the same answer again, {tokens} tokens so far"


def ending(turn: Turn, outcome: Outcome) -> str:
    """Status after the run: why it ended and how much it wrote."""
    answer = turn.answer
    reason = answer.rounds[-1].finish if answer.rounds else "length"
    why = ENDINGS.get(outcome.status) or f"Finished: {FINISH.get(reason or '', 'the answer is complete')}"
    return f"{why}. {_count(answer.tokens, 'token')} in {_count(len(answer.rounds), 'round')}."


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def end(scene: Scene, turn: Turn, outcome: Outcome) -> None:
    """Bring the scene to its end: numbers, check, and the plain words when drafting did not pay."""
    scene.state, scene.status, scene.progress = "done", ending(turn, outcome), None
    scene.baseline = outcome.baseline or scene.baseline
    if outcome.error:
        scene.notices.append(("error", outcome.error))
    if outcome.check:
        kind = {True: "ok", False: "warn", None: "info"}[outcome.check.identical]
        scene.notices.append((kind, outcome.check.text))
    if words := slower(turn.answer, scene.baseline):
        scene.notices.append(("warn", words))


def stored_page(run: Stored) -> tuple[Chat, Scene]:
    """A stored run as the conversation and the scene it ended with."""
    chat, scene = chat_of(run.ask), Scene()
    turn = chat.turns[-1]
    turn.run_id, turn.answer.sources = run.run_id, run.sources
    turn.answer.add(run.rounds)
    end(scene, turn, run.outcome)
    scene.status = "Stored run. " + scene.status
    return chat, scene
