"""Every run, as it happened, in one SQLite file.

The file may be shared by any number of processes. Writing happens on a thread of its own (``writer.py``): the methods
that write return at once and never raise, whatever state the file is in; :attr:`Store.problem` tells. Reading uses
connections of its own, which cannot write.
"""

from __future__ import annotations

import atexit
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from platformdirs import user_data_dir
from sqlite_utils import Database

from specdemo import rows
from specdemo.metrics import RunSummary
from specdemo.owner import living, new_id
from specdemo.reading import reader
from specdemo.rows import Change, Row
from specdemo.types import Request, Round, SpecdemoError, Start
from specdemo.writer import Event, Writer, explain

Status = Literal["running", "done", "stopped", "error", "interrupted"]
LIMIT = 10_000  # events kept in memory while nothing can be written; a round takes about 5 kB

_LISTED = (
    "id, session_id, started_at, finished_at, pool, selector, k, temperature, seed, prompt, tokens, rounds, "
    "mean_acceptance_length, tokens_per_second, finish_reason, error, check_result IS NOT NULL AS checked"
)
# A run is interrupted when the process that wrote it is gone, also where nobody could write that down yet.
_STATUS = (
    "CASE WHEN status = 'running' AND owner NOT IN (SELECT value FROM json_each(:alive)) "
    "THEN 'interrupted' ELSE status END"
)
# What an unfinished run has written so far.
_TEXT = (
    "coalesce(text, (SELECT group_concat(piece, '') FROM (SELECT piece FROM tokens WHERE run_id = runs.id "
    "ORDER BY token)), '')"
)


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as it was stored.

    Attributes:
        status: "running", "done", "stopped", "error" or "interrupted" (its process was killed).
        rounds: the rounds as they left the engine; if some were lost, those before the first lost one.
        provenance: what :meth:`Store.start_run` got as ``info``.
        summary: every number of :class:`specdemo.metrics.RunSummary`; None until the run has ended.
        lost_rounds: rounds that could not be written.
        check: comparison with plain decoding. ``baseline``: plain decoding as measured with this run.
    """

    id: str
    session_id: str | None
    status: Status
    error: str | None
    started_at: str
    finished_at: str | None
    pool: str
    request: Request
    provenance: dict[str, Any]
    rounds: list[Round]
    summary: dict[str, Any] | None
    lost_rounds: int
    check: dict[str, Any] | None
    baseline: dict[str, Any] | None
    regret: dict[str, Any] | None


@dataclass(slots=True)
class _Open:
    """A run that this process writes."""

    row: Row
    start: Start | None = None
    tokens: int = 0
    pieces: int = 0
    lost: int = 0

    def lose_round(self) -> None:
        self.lost += 1


def default_db() -> Path:
    """``$SPECDEMO_HOME/runs.db``, or ``runs.db`` where the system keeps an application's data."""
    home = os.environ.get("SPECDEMO_HOME")
    return Path(home or user_data_dir("specdemo", appauthor=False)).expanduser() / "runs.db"


class Store:
    """The database at ``path``: made when needed, shared with other processes, safe to use from any thread."""

    def __init__(self, path: str | os.PathLike[str], *, limit: int = LIMIT) -> None:
        self.path = Path(path).expanduser().absolute()
        self._open: dict[str, _Open] = {}
        self._lock = Lock()
        self._writer = Writer(self.path, limit, lambda: [run.row for run in list(self._open.values())])
        atexit.register(self.close)

    # ------------------------------------------------------------------------------------------------- writing

    def new_session(self) -> str:
        """Id of a new session: a visitor, or a conversation."""
        session = new_id()
        row = {"id": session, "created_at": _now()}
        self._writer.put(Event(partial(Change, {"sessions": [row]}), _nothing))
        return session

    def start_run(
        self,
        session_id: str | None,
        request: Request,
        pool_name: str,
        info: Mapping[str, Any],
        item: str | None = None,
        turn: int | None = None,
    ) -> str:
        """Id of a new run. ``info`` is :func:`specdemo.provenance.provenance`'s: JSON-able. ``item``, ``turn``: of an
        evaluation."""
        run = new_id()
        columns = {"id": run, "session_id": session_id, "status": "running", "owner": self._writer.owner.id}
        known = rows.run_row(request, pool_name, info)
        row = {**columns, "item": item, "turn": turn, "started_at": _now(), **known}
        with self._lock:
            self._open[run] = _Open(row)
        self._writer.put(Event(partial(Change, {"runs": [row]}), _nothing))
        return run

    def add_round(self, run_id: str, round: Round) -> None:
        """Queue a round of an open run. Takes some microseconds; written within about a quarter of a second."""
        with self._lock:
            run = self._open.get(run_id)
            if run is None:
                return
            run.start = run.start or round.start
            make = partial(rows.round_change, run_id, round, run.tokens, run.pieces, run.start)
            run.tokens += len(round.tokens)
            run.pieces += len(round.pieces)
        if not self._writer.put(Event(make, run.lose_round)):
            run.lose_round()

    def finish_run(self, run_id: str, status: Status, summary: RunSummary | None, error: str | None = None) -> None:
        """The run has ended. Written at once; call :meth:`flush` to wait for it."""
        with self._lock:
            run = self._open.pop(run_id, None)
        if run is None:
            return
        known = rows.summary_columns(summary) if summary else {}
        ended = {"status": status, "error": rows.clean(error), "finished_at": _now(), **known}
        # the row once more: the file may be another one by now, or the run's first event may not have been kept
        event = Event(lambda: _update(run_id, {**ended, "lost_rounds": run.lost}, {"runs": [run.row]}), _nothing)
        self._writer.put(event, keep=True, urgent=True)

    def set_check(self, run_id: str, result: Mapping[str, Any]) -> None:
        """Result of comparing the run with plain decoding, JSON-able."""
        self._set(run_id, "check_result", result)

    def set_baseline(self, run_id: str, result: Mapping[str, Any]) -> None:
        """Plain decoding as measured with the run (its speed, at least), JSON-able."""
        self._set(run_id, "baseline", result)

    def set_regret(self, run_id: str, result: Mapping[str, Any]) -> None:
        """Rounds of the run against those of every fixed arm (:mod:`specdemo.evaluation.ledger`), JSON-able."""
        self._set(run_id, "regret", result)

    def _set(self, run_id: str, column: str, result: Mapping[str, Any]) -> None:
        text = rows.dumps(result)
        self._writer.put(Event(lambda: _update(run_id, {column: text}), _nothing), urgent=True)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until everything so far is written, or has just failed to be; True if it is written."""
        return self._writer.flush(timeout)

    def close(self, timeout: float = 2.0) -> None:
        """Write what is queued, mark this process's unfinished runs as interrupted, end the thread. Repeatable."""
        atexit.unregister(self.close)
        for run in list(self._open):
            self.finish_run(run, "interrupted", None)
        self._writer.close(timeout)

    @property
    def problem(self) -> str | None:
        """What keeps runs from being stored at the moment and what helps, in plain sentences; None when all is well."""
        return self._writer.problem

    # ------------------------------------------------------------------------------------------------- reading

    def load_run(self, run_id: str) -> StoredRun | None:
        """The run with everything that was stored of it; None if there is no such run.

        Raises:
            SpecdemoError: the file cannot be read.
        """
        with self._reading() as (db, alive):
            sql = f"SELECT *, {_STATUS} AS state FROM runs WHERE id = :id"
            found = list(db.query(sql, {"id": run_id, "alive": alive}))
            return _stored(db, found[0]) if found else None

    def load_item(self, item: str, turn: int = 0) -> StoredRun | None:
        """The latest finished run of a turn of an evaluation's item; None if there is none.

        Raises:
            SpecdemoError: the file cannot be read.
        """
        sql = "SELECT max(id) AS id FROM runs WHERE item = ? AND turn = ? AND status = 'done'"
        with self._reading() as (db, _):
            (found,) = db.query(sql, [item, turn])
        return self.load_run(found["id"]) if found["id"] else None

    def list_runs(
        self, limit: int = 50, *, before: str | None = None, search: str | None = None, **equal: str | None
    ) -> list[dict[str, Any]]:
        """Newest runs first, one dict per run (the columns that describe it, no rounds).

        Args:
            limit: most runs to return. ``before``: only runs older than this run id (for the next page).
            search: only runs whose prompt or text contains this.
            equal: only runs with these values of ``session_id``, ``pool``, ``selector`` or ``status``; None is any.

        Raises:
            SpecdemoError: the file cannot be read.
        """
        if unknown := set(equal) - {"session_id", "pool", "selector", "status"}:
            raise TypeError(f"list_runs() has no filter {sorted(unknown)}")
        tests = {"before": "id < :before", "search": "instr(lower(prompt || ' ' || text), lower(:search))"}
        asked = {k: v for k, v in {"before": before, "search": search, **equal}.items() if v is not None}
        where = " AND ".join(tests.get(name, f"{name} = :{name}") for name in asked) or "1"
        listed = f"SELECT {_LISTED}, {_TEXT} AS text, {_STATUS} AS status FROM runs"
        sql = f"SELECT * FROM ({listed}) WHERE {where} ORDER BY id DESC LIMIT :limit"
        with self._reading() as (db, alive):
            return list(db.query(sql, {**asked, "alive": alive, "limit": limit}))

    def summaries(self, items: Iterable[str]) -> dict[tuple[str, int], dict[str, Any]]:
        """{(item, turn): summary and ``regret`` of the run} of an evaluation's finished runs, the latest of each.

        Raises:
            SpecdemoError: the file cannot be read.
        """
        sql = (
            "SELECT item, turn, summary, regret FROM runs WHERE status = 'done' "
            "AND item IN (SELECT value FROM json_each(:items)) ORDER BY id"
        )
        with self._reading() as (db, _):
            found = db.query(sql, {"items": rows.dumps(list(items))})
            return {
                (row["item"], row["turn"]): {
                    **json.loads(row["summary"]),
                    "regret": json.loads(row["regret"] or "null"),
                }
                for row in found
            }

    @contextmanager
    def _reading(self) -> Iterator[tuple[Database, str]]:
        """A connection that cannot write, and the living owners as JSON. Sees all that was written before."""
        if self.problem is None:
            self.flush(timeout=1.0)
        try:
            with closing(reader(self.path)) as db:
                yield db, rows.dumps(living(self.path, self._writer.owner.id))
        except (sqlite3.Error, OSError) as error:
            raise SpecdemoError(f"The stored runs cannot be read: {explain(error, self.path)}") from error


def _stored(db: Database, row: Row) -> StoredRun:
    def part(table: str, order: str) -> list[Row]:
        return list(db.query(f"SELECT * FROM {table} WHERE run_id = ? ORDER BY {order}", [row["id"]]))

    def parsed(column: str) -> Any:
        return None if row.get(column) is None else json.loads(row[column])

    same = ("id", "session_id", "error", "started_at", "finished_at", "pool", "lost_rounds")
    return StoredRun(
        **{name: row[name] for name in same},
        status=row["state"],
        request=rows.request_from(row["request"]),
        provenance=parsed("provenance"),
        rounds=rows.rounds_from(part("rounds", "round"), part("arms", "round, arm"), part("tokens", "token")),
        summary=parsed("summary"),
        check=parsed("check_result"),
        baseline=parsed("baseline"),
        regret=parsed("regret"),
    )


def _update(run_id: str, columns: Mapping[str, Any], before: Mapping[str, list[Row]] | None = None) -> Change:
    settings = ", ".join(f"{name} = ?" for name in columns)
    return Change(dict(before or {}), [(f"UPDATE runs SET {settings} WHERE id = ?", [*columns.values(), run_id])])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def _nothing() -> None:
    """Nobody needs to know: the writer counts it."""
