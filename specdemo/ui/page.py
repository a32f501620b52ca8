"""The whole value of the answer view: conversation, legend, numbers, status and messages. Drawn by static/view.js."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from specdemo.ui.backend import Baseline, Checking, Example, Outcome, Stored
from specdemo.ui.chat import Chat, Turn, chat_of
from specdemo.ui.stream import clean, facts, legend, slower

State = Literal["idle", "waiting", "running", "done"]
SPOKEN = 40  # tokens between two updates of the status line: it is read aloud by screen readers
FINISH = {
    "eos": "the model ended its answer",
    "stop": "a stop string was reached",
    "length": "the token limit was reached",
    "context": "the context window is full",
}
ENDINGS = {"stopped": "stopped", "interrupted": "the run was interrupted", "failed": "the run failed"}


@dataclass
class Scene:
    """What the page shows around the conversation. ``notices`` are (kind, text), kind "error", "warn" or "ok"."""

    state: State = "idle"
    status: str = ""
    progress: float | None = None
    notices: list[tuple[str, str]] = field(default_factory=list)
    baseline: Baseline | None = None


def page(chat: Chat, scene: Scene, problem: str | None = None, examples: list[Example] | None = None) -> dict[str, Any]:
    """Everything the view draws. Strings of a turn only grow while it is written."""
    last = chat.turns[-1] if chat.turns else None
    shown = last is not None and bool(last.answer.sources or last.answer.rounds)
    notices = [("warn", f"Runs are not being stored: {problem}"), *scene.notices] if problem else scene.notices
    return {
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
    why = ENDINGS.get(outcome.status) or FINISH.get(reason or "", "unfinished")
    verb = "Finished" if outcome.status == "finished" else "Ended"
    counts = f"{answer.tokens} {'token' if answer.tokens == 1 else 'tokens'} in {len(answer.rounds)} rounds"
    return f"{verb}: {why}. {counts}." if outcome.status != "stopped" else f"Stopped. {counts}, kept and stored."


def end(scene: Scene, turn: Turn, outcome: Outcome) -> None:
    """Bring the scene to its end: numbers, check, and the plain words when drafting did not pay."""
    scene.state, scene.status, scene.progress = "done", ending(turn, outcome), None
    scene.baseline = outcome.baseline or scene.baseline
    if outcome.check:
        scene.notices.append(("ok" if outcome.check.identical else "warn", outcome.check.text))
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
