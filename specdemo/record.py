"""Storing a run as it passes by, and noticing how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from specdemo.evaluation.ledger import estimated
from specdemo.metrics import summarise
from specdemo.store import Status, Store
from specdemo.types import Round, SpecdemoError


def record(
    rounds: Iterable[Round],
    store: Store | None,
    run_id: str | None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Round]:
    """The same rounds, each stored before it is passed on; the run is finished however this ends.

    Ends as "done" (the answer is complete), "stopped" (closed early, interrupted, or ``should_stop()`` was true between
    two rounds; the round in flight is kept) or "error" (an exception, which is stored and raised on). ``rounds`` is
    closed, too. Without a store, or without a run id, nothing is stored.
    """
    source = iter(rounds)
    seen: list[Round] = []
    status: Status = "stopped"
    error: str | None = None
    try:
        while not should_stop():
            round = next(source, None)
            if round is None:
                status = "stopped" if seen else "done"  # no rounds at all: there was no budget
                break
            seen.append(round)
            if store and run_id:
                store.add_round(run_id, round)
            yield round
    except Exception as exception:
        status, error = "error", describe(exception)
        raise
    finally:
        close = getattr(source, "close", None)
        if close:
            close()
        if store and run_id:
            _finish(store, run_id, seen, status, error)


def describe(error: Exception) -> str:
    """An error in one line: our own messages as they are, others with their type."""
    return str(error) if isinstance(error, SpecdemoError) else f"{type(error).__name__}: {error}"


def _finish(store: Store, run_id: str, seen: list[Round], status: Status, error: str | None) -> None:
    if status == "stopped" and seen and seen[-1].finish:
        status = "done"  # whoever read the last round need not ask for another
    summary = summarise(seen)
    if status != "done" and not seen:
        summary = replace(summary, finish_reason=None)
    store.finish_run(run_id, status, summary, error)
    regret = estimated(seen)
    if regret:
        store.set_regret(run_id, {"estimated": regret})
