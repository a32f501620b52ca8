"""Connections for reading, which cannot write."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlite_utils import Database

from specdemo.migrations import migrate
from specdemo.writer import BUSY


def reader(path: Path) -> Database:
    """A connection for reading; to an empty database while there is none."""
    if not path.exists():
        db = Database(memory=True)
        migrate(db)
        return db
    try:
        return _read_only(path)
    except sqlite3.OperationalError:  # a folder that cannot be written: WAL's helper files cannot be made there
        return _read_only(path, "&immutable=1")


def _read_only(path: Path, more: str = "") -> Database:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro{more}", uri=True, timeout=BUSY)
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return Database(connection)
