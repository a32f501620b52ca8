"""Runs in the store, as the page writes and reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from specdemo.store import Store, StoredRun
from specdemo.ui.backend import Ask, Baseline, Outcome, Source, Status, Stored
from specdemo.ui.verdict import in_words

STATUS: dict[str, Status] = {
    "running": "running",
    "done": "finished",
    "stopped": "stopped",
    "error": "failed",
    "interrupted": "interrupted",
}


class Runs:
    """The store, or nothing if there is none. Nothing here raises when the file cannot be written."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self._session = lru_cache(4096)(lambda browser: store.new_session() if store else None)

    def problem(self) -> str | None:
        """Why runs are not being stored, None if they are or nobody wants them to."""
        return self.store.problem if self.store else None

    def begin(self, ask: Ask, info: Mapping[str, Any]) -> str | None:
        """Id of the new run; ``info`` is its provenance. None without a store."""
        if self.store is None:
            return None
        return self.store.start_run(self._session(ask.session), ask.request, ask.pool, info)

    def end(self, run_id: str | None, check: Mapping[str, Any] | None, baseline: Baseline | None) -> None:
        """Store what is known after the rounds: the result of specdemo.check, and the speed of plain decoding."""
        if self.store and run_id and check:
            self.store.set_check(run_id, check)
        if self.store and run_id and baseline:
            self.store.set_baseline(run_id, {"tokens_per_second": baseline.speed, "of": baseline.of})

    def read(self, run_id: str, arms: Callable[[str], Iterable[Source]]) -> Stored | None:
        """A run, None if there is none. ``arms`` knows the drafters of a pool, if it knows the pool.

        Raises:
            SpecdemoError: the file cannot be read.
        """
        run = self.store.load_run(run_id) if self.store else None
        return None if run is None else _stored(run, arms(run.pool))


def _stored(run: StoredRun, arms: Iterable[Source]) -> Stored:
    known = {source.name: source for source in arms}
    start = run.rounds[0].start if run.rounds else None
    names = dict.fromkeys(start.drafters) if start else {}
    baseline = Baseline(run.baseline["tokens_per_second"], run.baseline["of"]) if run.baseline else None
    return Stored(
        run.id,
        Ask(run.request, run.pool, run.check is not None),
        tuple(known.get(name, Source(name)) for name in names),
        run.rounds,
        Outcome(STATUS[run.status], baseline, in_words(run.check), run.error),
    )
