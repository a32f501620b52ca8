"""The database's schema, as a list of migrations. A migration that was released is never changed: add another.

Plain SQL, so that the comments live in the file itself: ``sqlite3 runs.db .schema`` explains every column. Floats are
stored as 8-byte floats and come back bit for bit; text is UTF-8; JSON is ASCII and holds any string exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlite_utils import Database, Migrations

migrations = Migrations("specdemo")

SESSIONS = """CREATE TABLE sessions (
    id TEXT PRIMARY KEY,               -- sorts by time, like every id here
    created_at TEXT NOT NULL           -- UTC, ISO 8601, like every time here
)"""

RUNS = """CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    session_id TEXT REFERENCES sessions(id),
    status TEXT NOT NULL CHECK (status IN ('running', 'done', 'stopped', 'error', 'interrupted')),
    error TEXT,                        -- message of the error that ended the run
    owner TEXT NOT NULL,               -- the process that writes this run; alive while it locks <file>-<owner>.lock
    started_at TEXT NOT NULL,
    finished_at TEXT,
    pool TEXT NOT NULL,
    pool_hash TEXT,
    selector TEXT NOT NULL,
    k INTEGER NOT NULL,
    max_new_tokens INTEGER NOT NULL,
    temperature REAL NOT NULL,
    seed INTEGER NOT NULL,
    prompt TEXT NOT NULL,              -- raw prompt, or the last message of the conversation
    request TEXT NOT NULL,             -- JSON: everything that was asked
    version TEXT,                      -- of specdemo
    git TEXT,
    device TEXT,
    dtype TEXT,
    threads INTEGER,
    provenance TEXT NOT NULL,          -- JSON: everything that is known about code, machine and pool
    text TEXT,
    tokens INTEGER,
    rounds INTEGER,
    mean_acceptance_length REAL,       -- tokens / rounds
    tokens_per_second REAL,            -- tokens / wall time of the rounds; no prefill, no compile
    finish_reason TEXT,
    summary TEXT,                      -- JSON: every number, see metrics.py
    lost_rounds INTEGER NOT NULL DEFAULT 0,  -- rounds that could not be written (the summary counts them)
    check_result TEXT,                 -- JSON: comparison with plain decoding
    baseline TEXT                      -- JSON: plain decoding as it was measured with this run
)"""

ROUNDS = """CREATE TABLE rounds (
    run_id TEXT NOT NULL REFERENCES runs(id),
    round INTEGER NOT NULL,
    arm INTEGER NOT NULL,              -- the arm that drafted, -1 for plain decoding
    k INTEGER NOT NULL,                -- draft length asked for
    drafted INTEGER NOT NULL,          -- drafted tokens that count (cut ones do not)
    accepted INTEGER NOT NULL,
    finish TEXT,                       -- why the answer ends here
    draft_ms REAL NOT NULL,
    verify_ms REAL NOT NULL,
    feedback_ms REAL NOT NULL,
    learn_ms REAL NOT NULL,
    other_ms REAL NOT NULL,
    at_ms REAL NOT NULL,               -- end of the round, since the first round began
    pieces INTEGER NOT NULL,           -- how many more tokens have final text after this round
    draft TEXT NOT NULL,               -- JSON: all drafted ids, rejected ones too
    parents TEXT,                      -- JSON: parent of each drafted token in a tree, NULL for a chain
    draft_p TEXT NOT NULL,             -- JSON: target probability of each drafted token
    draft_q TEXT NOT NULL,             -- JSON: drafter probability of each drafted token
    path TEXT NOT NULL,                -- JSON: indices into draft of the accepted tokens
    kind TEXT NOT NULL,                -- what arms.value is: weight, index or choice
    start TEXT,                        -- JSON, round 0 only: what was done before the first round
    PRIMARY KEY (run_id, round)
)"""

ARMS = """CREATE TABLE arms (
    run_id TEXT NOT NULL REFERENCES runs(id),
    round INTEGER NOT NULL,
    arm INTEGER NOT NULL,
    name TEXT,
    kind TEXT NOT NULL,                -- what value is: weight, index or choice
    value REAL,                        -- what the next choice is made by, after this round
    estimate REAL,
    loss REAL,                         -- of this round
    PRIMARY KEY (run_id, round, arm)
)"""

TOKENS = """CREATE TABLE tokens (
    run_id TEXT NOT NULL REFERENCES runs(id),
    token INTEGER NOT NULL,            -- 0, 1, 2, ... over the whole answer
    id INTEGER NOT NULL,               -- in the target's vocabulary
    piece TEXT,                        -- its text, NULL while not final
    arm INTEGER,                       -- the arm that proposed it, NULL for the target's own
    drafter TEXT,
    round INTEGER NOT NULL,
    position INTEGER NOT NULL,         -- in the round's block, from 0
    p REAL NOT NULL,                   -- target probability
    q REAL,                            -- drafter probability
    PRIMARY KEY (run_id, token)
)"""


@migrations()  # type: ignore[untyped-decorator]
def m001_runs(db: Database) -> None:
    """Sessions, runs, and what happened in them round by round, arm by arm, token by token."""
    strict = " STRICT" if db.supports_strict else ""
    compact = f"{strict}, WITHOUT ROWID" if strict else " WITHOUT ROWID"
    for table in (SESSIONS, ARMS, TOKENS):
        db.execute(table + compact)
    for table in (RUNS, ROUNDS):
        db.execute(table + strict)
    db.execute("CREATE INDEX runs_session ON runs(session_id)")
    db.execute("CREATE INDEX runs_running ON runs(owner) WHERE status = 'running'")


class NewerSchema(Exception):
    """The file was written by a later version of specdemo."""


ADDED = (
    "rounds ADD COLUMN shadow_ms REAL NOT NULL DEFAULT 0",  # spent for display and regret only; part of nothing else
    "rounds ADD COLUMN realised TEXT",  # JSON: probability that the draft was accepted at each depth
    "rounds ADD COLUMN evaluated TEXT",  # JSON: what all arms would have done, if they were evaluated in this round
    "runs ADD COLUMN regret TEXT",  # JSON: rounds against every fixed arm, see evaluation/ledger.py
    "runs ADD COLUMN item TEXT",  # of an evaluation: stable id of prompt, selector, seed and settings
    "runs ADD COLUMN turn INTEGER",  # of the item's conversation, from 0
)


@migrations()  # type: ignore[untyped-decorator]
def m002_evaluations(db: Database) -> None:
    """What all arms would have done, and runs that belong to an evaluation."""
    for column in ADDED:
        db.execute(f"ALTER TABLE {column}")
    db.execute("CREATE INDEX runs_item ON runs(item) WHERE item IS NOT NULL")


def migrate(db: Database) -> None:
    """Bring the file to this version's schema: create it, or apply what is missing. Safe between processes.

    Raises:
        NewerSchema: the file knows migrations that this version does not; nothing was changed.
    """
    known = {migration.name for migration in migrations.pending(Database(memory=True))}
    if {migration.name for migration in migrations.applied(db)} - known:
        raise NewerSchema
    if migrations.pending(db):
        db.enable_wal()
        with immediate(db):  # whoever comes second finds nothing pending
            migrations.apply(db)


@contextmanager
def immediate(db: Database) -> Iterator[None]:
    """A transaction that takes the write lock first. ``db.atomic()`` reads first, and a reader that wants to write is
    refused at once, without waiting, when another process wrote in between; inside it only adds a savepoint."""
    db.execute("BEGIN IMMEDIATE")
    try:
        with db.atomic():
            yield
    except BaseException:
        db.rollback()
        raise
    db.commit()
