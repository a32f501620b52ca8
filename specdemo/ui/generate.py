"""The tab "Generate": one conversation, one stream, every token in the colour of the drafter that proposed it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import gradio as gr

from specdemo.types import Round, SpecdemoError
from specdemo.ui.backend import Ask, Backend, Begun, Checking, Event
from specdemo.ui.chat import LONGEST_ANSWER, LONGEST_DRAFT, SETTINGS, Chat, ask, form_of
from specdemo.ui.lane import Job, Lane
from specdemo.ui.page import UNKNOWN, Scene, checking, end, page, stored_page, writing
from specdemo.ui.team import team_html

STATIC = Path(__file__).parent / "static"
VISITORS = 32  # answers that may wait or run at once; more are refused by the queue
QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
AT_ONCE: dict[str, Any] = {**QUIET, "queue": False}
LOG = logging.getLogger(__name__)


def view(value: dict[str, Any]) -> gr.HTML:
    """The answer view: a static template, drawn by view.js; model text never meets a template."""
    return gr.HTML(
        value,
        html_template=(STATIC / "view.html").read_text("utf-8"),
        js_on_load=(STATIC / "view.js").read_text("utf-8"),
        apply_default_css=False,
        elem_id="view",
    )


class Generate:
    """The tab's layout and its handlers.

    Handlers take the visitor's :class:`Chat` from a gr.State: everything a visitor has is in there, nothing is shared
    between visitors but the lane and the backend.
    """

    def __init__(self, backend: Backend, lane: Lane) -> None:
        self.backend, self.lane = backend, lane
        self.examples = list(backend.examples())
        self.selectors = {s.name: s for s in backend.selectors()}
        self.form: dict[str, gr.components.Component] = {}

    # ------------------------------------------------------------------------------------------------ layout

    def build(self, blocks: gr.Blocks) -> None:
        """Lay the tab out and connect it; called inside ``blocks``."""
        self.chat = gr.State(None, time_to_live=6 * 3600)
        with gr.Row():
            with gr.Column(scale=5, min_width=320):
                self.view = view(self.page(Chat(), Scene()))
                self._prompt()
            with gr.Column(scale=2, min_width=280):
                self._settings()
        with gr.Accordion("Drafters: what each is good at", open=False, elem_id="team"):
            self.team = gr.HTML(self.show_team(self.backend.pools()[0].name), apply_default_css=False)
        self._connect(blocks)

    def _prompt(self) -> None:
        self.prompt = gr.Textbox(
            label="Prompt", lines=2, max_lines=10, placeholder="Ask something", elem_id="prompt", autofocus=True
        )
        with gr.Row(elem_id="buttons"):
            self.run = gr.Button("Run", variant="primary", elem_id="run", min_width=80, size="md")
            self.stop = gr.Button("Stop", elem_id="stop", min_width=80, size="md")
            self.new = gr.Button("New chat", elem_id="new", min_width=80, size="md")

    def _settings(self) -> None:
        pools, first = [p.name for p in self.backend.pools()], next(iter(self.selectors.values()))
        form = self.form
        form["pool"] = gr.Dropdown(pools, value=pools[0], label="Pool", info=" ", elem_id="pool")
        form["selector"] = gr.Dropdown(
            list(self.selectors), value=first.name, label="Selector", info=first.about, elem_id="selector"
        )
        form["k"] = gr.Slider(
            0,
            LONGEST_DRAFT,
            SETTINGS["k"],
            step=1,
            label="K",
            info="longest draft, in tokens; 0 is plain decoding",
            elem_id="k",
        )
        form["check"] = gr.Checkbox(
            SETTINGS["check"],
            label="Check against plain decoding",
            info="writes the answer a second time without drafts, compares every token and measures the speed",
            elem_id="check",
        )
        with gr.Accordion("Length, seed and stop strings", open=False):
            form["max_new_tokens"] = gr.Number(
                SETTINGS["max_new_tokens"],
                label="Max new tokens",
                info=f"at most {LONGEST_ANSWER}",
                precision=0,
                elem_id="max",
            )
            form["seed"] = gr.Number(
                SETTINGS["seed"], label="Seed", info="same request, same answer", precision=0, elem_id="seed"
            )
            form["stop"] = gr.Textbox(
                label="Stop strings", info="one a line; \\n is a newline", lines=2, elem_id="stops"
            )
        with gr.Accordion("Sampling", open=False):
            self._sampling()
        with gr.Accordion("Conversation", open=False):
            form["system"] = gr.Textbox(label="System prompt", lines=2, elem_id="system")
            form["raw"] = gr.Checkbox(
                label="Raw completion",
                info="continue the prompt as it is, without chat template and history",
                elem_id="raw",
            )
            form["options"] = gr.Textbox(
                label="Selector options", info="as JSON", placeholder=json.dumps(dict(first.options)), elem_id="options"
            )

    def _sampling(self) -> None:
        def slider(name: str, low: float, high: float, step: float, label: str, info: str) -> None:
            self.form[name] = gr.Slider(low, high, SETTINGS[name], step=step, label=label, info=info, elem_id=name)

        slider("temperature", 0, 2, 0.05, "Temperature", "0 is greedy")
        slider("top_k", 0, 200, 1, "Top-k", "0 is off")
        slider("top_p", 0.01, 1, 0.01, "Top-p", "1 is off")
        slider("min_p", 0, 1, 0.01, "Min-p", "0 is off")
        slider("repetition_penalty", 0.5, 2, 0.01, "Repetition penalty", "1 is off")
        slider("frequency_penalty", -2, 2, 0.05, "Frequency penalty", "0 is off")
        slider("presence_penalty", -2, 2, 0.05, "Presence penalty", "0 is off")

    def _connect(self, blocks: gr.Blocks) -> None:
        form = list(self.form.values())
        started = self.run.click(
            self.prepare, [self.prompt, self.chat, *form], [self.view, self.chat, self.prompt], **AT_ONCE
        )
        answered = started.then(
            self.answer, self.chat, self.view, concurrency_id="engine", concurrency_limit=VISITORS, **QUIET
        )
        answered.then(self.give_back, [self.chat, self.prompt], self.prompt, **AT_ONCE)
        self.stop.click(self.flag, self.chat, None, **AT_ONCE)
        self.new.click(self.clear, self.chat, [self.view, self.chat], **AT_ONCE)
        self.view.example(self.example, None, self.prompt, **AT_ONCE)
        explained = [self.form["selector"], self.form["options"]]
        self.form["selector"].change(self.explain, self.form["selector"], explained, **AT_ONCE)
        waiting = {"concurrency_limit": None, **QUIET}
        self.form["pool"].change(self.watch_pool, self.form["pool"], self.form["pool"], **waiting)
        self.form["pool"].change(self.show_team, self.form["pool"], self.team, **AT_ONCE)
        blocks.load(self.watch_pool, self.form["pool"], self.form["pool"], **waiting)
        blocks.load(self.open_run, None, [self.view, self.chat, *form], **AT_ONCE)

    # ------------------------------------------------------------------------------------------------ handlers

    def page(self, chat: Chat, scene: Scene) -> dict[str, Any]:
        """Value of the view."""
        return page(chat, scene, self.backend.problem(), self.examples)

    def prepare(self, request: gr.Request, prompt: str, chat: Chat | None, *values: Any) -> tuple[Any, ...]:
        """Take the form at its word, or say what is wrong with it and leave everything as it is."""
        chat = chat or Chat()
        if chat.running:
            return gr.skip(), gr.skip(), gr.skip()
        try:
            asked = ask(chat, prompt, dict(zip(self.form, values, strict=True)), str(request.session_hash))
        except SpecdemoError as error:
            return (
                self.page(chat, Scene("done" if chat.turns else "idle", notices=[("error", str(error))])),
                chat,
                gr.skip(),
            )
        chat.begin(asked, prompt)
        return self.page(chat, Scene("waiting", "Starting")), chat, ""

    def answer(self, chat: Chat | None) -> Iterator[Any]:
        """Stream the pending answer. Closing the page closes this generator, and that stops the run."""
        if not chat or not chat.pending:
            yield gr.skip()
            return
        asked, chat.pending, chat.running = chat.pending, None, True
        scene = Scene("waiting")
        job = self.lane.submit(lambda stop: self._work(asked, stop), chat.stop)
        try:
            with closing(job.batches()) as batches:
                for events in batches:
                    if chat.stop.is_set() and scene.state == "waiting":
                        break
                    self._apply(chat, scene, events, job, asked.pool)
                    yield self.page(chat, scene)
        except SpecdemoError as error:
            scene.notices.append(("error", str(error)))
        except Exception as error:  # the page must say so, whatever it was
            LOG.exception("a run failed")
            scene.notices.append(
                ("error", f"The run failed: {type(error).__name__}: {error}. The log has the details.")
            )
        finally:
            chat.running = False
        if scene.state != "done":
            scene.state, scene.progress = "done", None
            scene.status = "Stopped." if chat.stop.is_set() and not scene.notices else "Ended by an error."
        yield self.page(chat, scene)

    def _work(self, asked: Ask, stop: threading.Event) -> Iterator[Event]:
        """Runs in the lane."""
        self.backend.load(asked.pool)
        if not stop.is_set():
            yield from self.backend.answer(asked, stop)

    def _apply(self, chat: Chat, scene: Scene, events: list[Event], job: Job[Event], pool: str) -> None:
        """Bring chat and scene up to date with what happened."""
        turn = chat.turns[-1]
        turn.answer.add([event for event in events if isinstance(event, Round)])
        for event in events:
            if isinstance(event, Begun):
                turn.run_id, turn.answer.sources, scene.baseline = event.run_id, event.sources, event.baseline
                scene.state, scene.status, scene.progress = "running", "Reading the prompt", None
            elif isinstance(event, Round):
                scene.status = writing(turn)
            elif isinstance(event, Checking):
                scene.status = checking(event)
            else:
                end(scene, turn, event)
        if scene.state == "waiting":
            self._wait(scene, job, pool)

    def _wait(self, scene: Scene, job: Job[Event], pool: str) -> None:
        """Say what a visitor waits for: other visitors, or the model."""
        ready, ahead = self.backend.readiness(pool), job.ahead
        loading = ready.state == "loading"  # which the others wait for, too
        scene.progress = (UNKNOWN if ready.fraction is None else ready.fraction) if loading else None
        scene.status = ready.text if loading else f"Waiting: {ahead} before you" if ahead else "Starting"

    def give_back(self, chat: Chat | None, prompt: str) -> Any:
        """A prompt that got no answer goes back to where it was typed."""
        last = chat.turns[-1] if chat and chat.turns else None
        return last.prompt if last and not last.answer.rounds and not prompt else gr.skip()

    def flag(self, chat: Chat | None) -> None:
        """Ask the run to end; it does within one round, and the stream then shows all that was written."""
        if chat:
            chat.stop.set()

    def clear(self, chat: Chat | None) -> tuple[Any, Any]:
        """A new conversation; a running answer ends, unseen."""
        self.flag(chat)
        fresh = Chat()
        return self.page(fresh, Scene()), fresh

    def example(self, event: gr.EventData) -> Any:
        """Put an example into the prompt box; the page's word is taken only for prompts that exist."""
        chosen = str(getattr(event, "prompt", ""))
        return chosen if any(e.prompt == chosen for e in self.examples) else gr.skip()

    def explain(self, name: str) -> tuple[Any, Any]:
        """The selector in one line, and its options."""
        selector = self.selectors[name]
        return gr.Dropdown(info=selector.about), gr.Textbox(placeholder=json.dumps(dict(selector.options)))

    def show_team(self, pool: str) -> str:
        """The pool's drafters as a table."""
        return team_html(self.backend.team(pool))

    def watch_pool(self, pool: str) -> Iterator[Any]:
        """Load a pool behind the page and show how far it is, under its name."""
        about = next((p.about for p in self.backend.pools() if p.name == pool), "")
        if self.backend.readiness(pool).state != "ready":
            job = self.lane.call(lambda: self.backend.load(pool))
            with suppress(Exception):  # readiness tells
                for _ in job.batches():
                    yield gr.Dropdown(info=self.backend.readiness(pool).text or about)
        ready = self.backend.readiness(pool)
        yield gr.Dropdown(info=about if ready.state == "ready" else ready.text)

    def open_run(self, request: gr.Request) -> tuple[Any, ...]:
        """?run=ID shows a stored run, with its settings."""
        run_id = request.query_params.get("run")
        if not run_id:
            return (gr.skip(),) * (2 + len(self.form))
        try:
            run = self.backend.stored(run_id)
            problem = f"There is no stored run {run_id}. It may have been deleted, or be in another database."
        except SpecdemoError as error:
            run, problem = None, str(error)
        if run is None:
            scene = Scene(notices=[("error", problem)])
            return (self.page(Chat(), scene), *(gr.skip(),) * (1 + len(self.form)))
        chat, scene = stored_page(run)
        form = form_of(run.ask)
        return self.page(chat, scene), chat, *(form[name] for name in self.form)
