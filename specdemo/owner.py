"""Which processes are alive: each holds a lock on a file beside the database, and the system drops it when they die.

This tells a run that is being written from one whose process was killed, without clocks, heartbeats or process ids
(which mean nothing between containers).
"""

from __future__ import annotations

import os
import secrets
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


def new_id() -> str:
    """A short id (15 characters, URL-safe) that sorts by time: 55 bits of microseconds, 20 of chance."""
    number = (time.time_ns() // 1000 << 20) | secrets.randbits(20)
    return "".join(_DIGITS[number >> shift & 31] for shift in range(70, -1, -5))


class Owner:
    """This process as a writer of one database."""

    def __init__(self, database: Path) -> None:
        self.id = new_id()
        self._path = database.with_name(f"{database.name}-{self.id}.lock")
        self._lock: FileLock | None = None

    def claim(self) -> None:
        """Hold the lock; again if its file was removed meanwhile. Raises OSError where no file can be made."""
        while self._lock is None or not self._path.exists():
            self.release()
            self._lock = FileLock(str(self._path), thread_local=False)
            self._lock.acquire(timeout=5)  # someone who sweeps may hold it for a moment, and then removes it

    def release(self) -> None:
        """Let go; the runs that are still marked running are interrupted ones from now on."""
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(self._path)
            self._lock.release(force=True)
            self._lock = None


def living(database: Path, mine: str) -> list[str]:
    """Ids of all owners of the database that are alive, ``mine`` among them. Lock files of the dead are removed."""
    prefix, suffix = f"{database.name}-", ".lock"
    names = [path.name for path in database.parent.glob("*" + suffix) if path.name.startswith(prefix)]
    others = {name[len(prefix) : -len(suffix)]: database.with_name(name) for name in names}
    return [mine, *(owner for owner, path in others.items() if owner != mine and not _dead(path))]


def _dead(path: Path) -> bool:
    lock = FileLock(str(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return False
    except OSError:  # not ours to judge: a folder we cannot write, a file of another user
        return not path.exists()
    with suppress(OSError):
        os.unlink(path)  # while we hold it: an owner who waits for it then sees that it is gone
    lock.release()
    return True
