import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from specdemo.metrics import summarise
from specdemo.record import record
from specdemo.store import Store, StoredRun
from specdemo.types import Round, SpecdemoError
from tests.traces import make_request, make_trace


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "runs.db")) as store:
        yield store


class Engine:
    """Yields the rounds, then raises the error; knows whether it was closed."""

    def __init__(self, rounds: list[Round], error: BaseException | None = None) -> None:
        self.rounds, self.error, self.closed, self.yielded = rounds, error, False, 0

    def run(self) -> Iterator[Round]:
        try:
            for r in self.rounds:
                self.yielded += 1
                yield r
            if self.error:
                raise self.error
        finally:
            self.closed = True


def start(store: Store) -> str:
    return store.start_run(None, make_request(), "embedded", {})


def load(store: Store, run_id: str) -> StoredRun:
    run = store.load_run(run_id)
    assert run is not None
    return run


def test_done(store: Store) -> None:
    rounds, run_id = make_trace(1, 12, finish="eos"), start(store)
    engine = Engine(rounds)
    assert list(record(engine.run(), store, run_id)) == rounds
    run = load(store, run_id)
    assert (run.status, run.rounds, run.error, engine.closed) == ("done", rounds, None, True)
    assert run.summary is not None
    assert (run.summary["finish_reason"], run.summary["text"]) == ("eos", summarise(rounds).text)


def test_no_rounds_is_done_by_length(store: Store) -> None:
    run_id = start(store)
    assert list(record(iter(()), store, run_id)) == []
    run = load(store, run_id)
    assert run.status == "done"
    assert run.summary is not None
    assert run.summary["finish_reason"] == "length"


def test_closed_early_is_stopped_and_keeps_its_rounds(store: Store) -> None:
    rounds, run_id = make_trace(2, 12), start(store)
    engine = Engine(rounds)
    recorded = record(engine.run(), store, run_id)
    for _ in range(3):
        next(recorded)
    recorded.close()  # type: ignore[attr-defined]
    run = load(store, run_id)
    assert (run.status, run.rounds, engine.closed) == ("stopped", rounds[:3], True)
    assert run.summary is not None
    assert (run.summary["finish_reason"], run.summary["num_spec_steps"]) == (None, 3)


@pytest.mark.parametrize("stop_after", [0, 4])
def test_should_stop_is_asked_before_every_round(store: Store, stop_after: int) -> None:
    run_id, engine, seen = start(store), Engine(make_trace(3, 12)), []
    for r in record(engine.run(), store, run_id, should_stop=lambda: len(seen) == stop_after):
        seen.append(r)
    assert (len(seen), engine.yielded) == (stop_after, stop_after)
    run = load(store, run_id)
    assert (run.status, run.rounds) == ("stopped", seen)
    assert run.summary is not None
    assert run.summary["finish_reason"] is None


def test_reader_that_leaves_after_the_last_round_saw_a_complete_answer(store: Store) -> None:
    run_id = start(store)
    for r in record(iter(make_trace(4, 5)), store, run_id):
        if r.finish:
            break
    assert load(store, run_id).status == "done"


def test_rounds_that_end_without_a_reason_are_not_called_done(store: Store) -> None:
    run_id = start(store)
    list(record(iter(make_trace(5, 5, finish=None)), store, run_id))
    assert load(store, run_id).status == "stopped"


@pytest.mark.parametrize(
    ("error", "message"),
    [(SpecdemoError("The cache is full. Ask for less."), "The cache is full. Ask for less."),
     (ValueError("shape \ud800"), "ValueError: shape \ufffd")],
)  # fmt: skip
def test_error_is_stored_and_raised_on(store: Store, error: Exception, message: str) -> None:
    rounds, run_id = make_trace(6, 4, finish=None), start(store)
    with pytest.raises(type(error)):
        list(record(Engine(rounds, error).run(), store, run_id))
    run = load(store, run_id)
    assert (run.status, run.error, run.rounds) == ("error", message, rounds)


def test_control_c_is_stopped(store: Store) -> None:
    run_id = start(store)
    with pytest.raises(KeyboardInterrupt):
        list(record(Engine(make_trace(7, 4, finish=None), KeyboardInterrupt()).run(), store, run_id))
    assert load(store, run_id).status == "stopped"


def test_without_a_store() -> None:
    rounds = make_trace(8)
    assert list(record(iter(rounds), None, None)) == rounds


def test_a_store_in_trouble_does_not_change_a_thing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with closing(Store(tmp_path / "file" / "runs.db", limit=3)) as store:
        rounds = make_trace(9, 50)
        began = time.perf_counter()
        assert list(record(iter(rounds), store, start(store))) == rounds
        assert time.perf_counter() - began < 0.1
        assert store.problem
