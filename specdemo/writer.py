"""One thread that writes to the database, in batches, from a queue; whatever goes wrong there stays there.

Callers only append to the queue. While the file cannot be written, the queue keeps what happens, up to a bound, and
the thread tries again every second; :attr:`Writer.problem` says meanwhile what is wrong and what helps.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Condition, Thread

from sqlite_utils import Database

from specdemo.migrations import NewerSchema, immediate, migrate
from specdemo.owner import Owner, living
from specdemo.rows import Change, Row

log = logging.getLogger(__name__)

INTERVAL = 0.25  # seconds between batches: with one batch in flight, a killed process loses less than a second
RETRY = 1.0  # seconds between attempts while there is a problem
BUSY = 1.0  # seconds to wait for another process's transaction; an ordinary one takes milliseconds
BATCH = 500  # events in one transaction


@dataclass(frozen=True, slots=True)
class Event:
    """Something to write. ``make`` computes it, on the writer's thread; ``lost`` is told if it cannot be written."""

    make: Callable[[], Change]
    lost: Callable[[], None]


class Writer:
    """The queue and its thread.

    Args:
        path: the database file; it and its folder are made when needed.
        limit: most events kept in memory; one more is refused.
        standing: rows of ``runs`` that must be there whenever a file is opened (it may have been deleted meanwhile).
    """

    def __init__(self, path: Path, limit: int, standing: Callable[[], list[Row]]) -> None:
        self.path = path
        self.owner = Owner(path)
        self._limit, self._standing = limit, standing
        self._queue: deque[Event] = deque()
        self._changed = Condition()
        self._added = self._handled = self._attempts = self._lost = 0
        self._urgent = self._closing = False
        self._deadline = float("inf")
        self._cause: str | None = None
        self._patient = True
        self._db: Database | None = None
        self._inode: tuple[int, int] | None = None
        self._thread = Thread(target=self._run, name="specdemo-store", daemon=True)
        self._thread.start()
        with self._changed:  # so that a bad file is known from the start
            self._changed.wait_for(lambda: self._attempts, timeout=2 * BUSY)

    # ------------------------------------------------------------------------------------------- any thread

    def put(self, event: Event, *, keep: bool = False, urgent: bool = False) -> bool:
        """Queue an event; False if the queue is full. ``keep`` queues it all the same, ``urgent`` writes it at once."""
        with self._changed:
            if self._closing or (len(self._queue) >= self._limit and not keep):
                self._lost += 1
                return False
            self._queue.append(event)
            self._added += 1
            self._urgent |= urgent
            if urgent or len(self._queue) == 1:
                self._changed.notify_all()
            return True

    def flush(self, timeout: float) -> bool:
        """Wait until all that was queued so far is written, or an attempt failed; True if it is written."""
        with self._changed:
            goal, attempts = self._added, self._attempts
            self._urgent = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._handled >= goal or (self._cause and self._attempts > attempts), timeout
            )
            return self._handled >= goal

    def close(self, timeout: float) -> None:
        """Write what is queued, for at most about ``timeout`` seconds, and end the thread."""
        with self._changed:
            self._closing, self._deadline = True, time.monotonic() + timeout
            self._changed.notify_all()
        self._thread.join(timeout + 2 * BUSY)

    @property
    def problem(self) -> str | None:
        """One or two sentences when nothing is being written: what, why, what helps. None when all is well."""
        if self._cause is None:
            return None
        waiting, lost = len(self._queue), self._lost
        if not self._thread.is_alive():
            waiting, lost = 0, lost + waiting
        kept = f" {_count(waiting)} wait{'s' if waiting == 1 else ''} in memory until it works." if waiting else ""
        gone = f" {_count(lost)} could not be kept." if lost else ""
        return f"Runs are not being stored: {self._cause}{kept}{gone}"

    # --------------------------------------------------------------------------------------- the writer's thread

    def _run(self) -> None:
        done = False
        while not done:
            done = self._step()
        self._disconnect()
        self.owner.release()

    def _step(self) -> bool:
        """One batch, or one attempt; True when it was the last."""
        events = list(islice(self._queue, BATCH))
        fine = self._attempt(events)
        with self._changed:
            self._attempts += 1
            if fine:
                for _ in events:
                    self._queue.popleft()
                self._handled += len(events)
            self._changed.notify_all()
            if self._closing and (not self._queue or not (fine or self._patient) or time.monotonic() > self._deadline):
                return True
            self._wait(fine)
        return False

    def _wait(self, fine: bool) -> None:
        if fine:
            self._changed.wait_for(lambda: self._queue or self._closing)
        if fine and len(self._queue) >= BATCH:
            return
        pause = min(INTERVAL if fine else RETRY, max(0.01, self._deadline - time.monotonic()))
        self._changed.wait_for(lambda: self._urgent or (self._closing and fine), timeout=pause)
        self._urgent = False

    def _attempt(self, events: list[Event]) -> bool:
        try:
            self._write(self._connect(), events)
        except Exception as error:  # nothing that happens to a file may reach a generation
            self._disconnect()
            self._cause = explain(error, self.path)
            self._patient = "locked" in str(error)  # a lock ends by itself, soon: worth waiting for when closing
            return False
        self._cause = None
        return True

    def _write(self, db: Database, events: list[Event]) -> None:
        """Write the events in one transaction. One that cannot be written, ever, is left out: the others go on."""
        if not events:
            return
        try:
            changes = [event.make() for event in events]
            with immediate(db):
                _insert(db, changes)
        except Exception as error:
            if is_fault_of_storage(error):
                raise
            if len(events) == 1:
                log.exception("an event could not be stored")
                self._lost += 1
                return events[0].lost()
            for event in events:
                self._write(db, [event])

    def _connect(self) -> Database:
        """The open database; opened again when the file is another one, or gone."""
        if self._db is not None and self._inode == _inode(self.path):
            return self._db
        self._disconnect()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.owner.claim()
        self._db = db = Database(sqlite3.connect(self.path, timeout=BUSY, check_same_thread=False))
        migrate(db)
        db.execute("PRAGMA synchronous = NORMAL")  # with WAL: a killed process loses nothing that was committed
        with immediate(db):
            _interrupt(db, living(self.path, self.owner.id))
            _insert(db, [Change({"runs": self._standing()})])
        self._inode = _inode(self.path)
        return db

    def _disconnect(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = self._inode = None


def _insert(db: Database, changes: Iterable[Change]) -> None:
    """All rows, table by table, then all statements in order. Rows that are there already are left alone, so that a
    batch can be repeated."""
    tables: dict[str, list[Row]] = {}
    for change in changes:
        for table, rows in change.rows.items():
            tables.setdefault(table, []).extend(rows)
    for table, rows in tables.items():
        db[table].insert_all(rows, ignore=True)
    for change in changes:
        for sql, values in change.statements:
            db.execute(sql, values)


def _interrupt(db: Database, alive: list[str]) -> None:
    marks = ",".join("?" * len(alive))
    db.execute(f"UPDATE runs SET status = 'interrupted' WHERE status = 'running' AND owner NOT IN ({marks})", alive)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _count(events: int) -> str:
    return "1 event" if events == 1 else f"{events} events"


# ---------------------------------------------------------------------------------------------------- what went wrong

_ELSEWHERE = "choose another file with --db or another folder with SPECDEMO_HOME"
_CAUSES = (  # SQLite's words; Python 3.10 has no error codes
    ("locked", "another program holds a lock on {path}. Storing goes on when it lets go; close it if it does not."),
    ("readonly", "{path} is read-only. Make the file and its folder writable, or " + _ELSEWHERE + "."),
    ("read-only", "{path} is read-only. Make the file and its folder writable, or " + _ELSEWHERE + "."),
    ("permission", "{path} may not be written. Make the file and its folder writable, or " + _ELSEWHERE + "."),
    ("no space", "the disk that holds {path} is full. Free some space, or " + _ELSEWHERE + "."),
    ("unable to open", "{path} cannot be opened. Make the file and its folder writable, or " + _ELSEWHERE + "."),
    ("full", "the disk that holds {path} is full. Free some space, or " + _ELSEWHERE + "."),
    ("not a database", "{path} is not a database of specdemo, or damaged. Move it away, or " + _ELSEWHERE + "."),
    ("malformed", "{path} is damaged. Move it away (sqlite3's .recover may save its rows), or " + _ELSEWHERE + "."),
    ("already exists", "{path} is a database of another program. " + _ELSEWHERE.capitalize() + "."),
)


def is_fault_of_storage(error: Exception) -> bool:
    """Whether the same event may well be written later: the file was the problem, not the event."""
    return isinstance(error, (OSError, sqlite3.OperationalError)) or type(error) is sqlite3.DatabaseError


def explain(error: Exception, path: Path) -> str:
    """What is wrong with the file, and what helps: a sentence or two that continue another."""
    if isinstance(error, NewerSchema):
        return f"{path} was written by a later version of specdemo. Update specdemo, or {_ELSEWHERE}."
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    for word, cause in _CAUSES:
        if word in text.lower():
            return cause.format(path=path)
    return f"{path} cannot be used ({text}). Put that right, or {_ELSEWHERE}."
