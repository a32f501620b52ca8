"""What produced a run: code, machine, libraries, pool."""

from __future__ import annotations

import os
import platform
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import specdemo

LIBRARIES = ("torch", "transformers", "gradio")


def provenance(pool_info: Mapping[str, Any]) -> dict[str, Any]:
    """Everything worth knowing about where a run came from, JSON-able.

    ``device``, ``dtype`` and ``pool_hash`` are the pool's ``device``, ``dtype`` and ``hash``, None where it does not
    tell; all that the pool tells is under ``pool``. ``git`` is the commit of a checkout, with "+dirty" after it when
    tracked files differ from it, None for an installed package.
    """
    told = {
        name: _text(pool_info.get(key))
        for name, key in (("device", "device"), ("dtype", "dtype"), ("pool_hash", "hash"))
    }
    return {**_machine(), **told, "threads": _threads(), "pool": dict(pool_info)}


@lru_cache(maxsize=1)
def _machine() -> dict[str, Any]:
    return {
        "version": specdemo.__version__,
        "git": git_commit(Path(__file__).resolve().parents[1]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "sqlite": sqlite3.sqlite_version,
        **{name: _version(name) for name in LIBRARIES},
    }


def git_commit(folder: Path) -> str | None:
    """Commit checked out in ``folder``; None if it is not the root of a checkout, or there is no git."""
    if not (folder / ".git").exists():  # a package installed somewhere below another project's checkout is not of it
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = commit and _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+dirty" if changes else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _threads() -> int | None:
    """Threads that torch computes with; None where no torch is loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def _text(value: Any) -> str | None:
    return None if value is None else str(value).removeprefix("torch.")
