"""What is installed, where things are, and what is wrong."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specdemo import __version__, models
from specdemo.pools import pool_names, read_pool
from specdemo.types import SpecdemoError

Json = dict[str, Any]
PACKAGES = ("torch", "transformers", "gradio", "sqlite-utils", "numpy", "safetensors", "gguf", "huggingface-hub")


def report(db: str | None = None, fetch: bool = True, verify: bool = False) -> Json:
    """Everything that helps to find out why something does not work, JSON-able.

    Args:
        db: path of the runs' database, None is the default.
        fetch: fetch the embedded model if it is missing.
        verify: compare the contents of the model's files with their hashes.

    Returns:
        ``ok`` and ``problems`` (in words, what is essential), ``versions``, the target's ``device``, ``dtype``,
        ``threads`` and ``compiler``, ``model_path`` (None if there is no model), ``model``, ``pools``, ``database``,
        ``disk``.
    """
    problems: list[str] = []
    model = _model(fetch, verify, problems)
    machine = _machine(problems)
    database = _database(db)
    if database["problem"]:
        problems.append(database["problem"])
    return {
        "ok": not problems,
        "problems": problems,
        "specdemo": __version__,
        "versions": _versions(),
        **machine,
        "model_path": model.pop("path"),
        "model": model,
        "pools": [_pool(name) for name in pool_names()],
        "database": database,
        "disk": {"home": str(models.home()), "free_mb": _free_mb(models.home())},
    }


def lines(found: Json) -> list[str]:
    """The report for people."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    db = found["database"]
    return [
        f"specdemo   {found['specdemo']} with {versions}",
        f"computes   on {found['device']} in {found['dtype']} with {found['threads']} threads, "
        f"compiler: {found['compiler'] or 'none, --compile will not work'}",
        f"model      {found['model_path'] or 'missing'} ({found['model']['source'] or 'not fetched yet'})",
        f"pools      {', '.join(pool['name'] for pool in found['pools'])}",
        f"database   {db['path']} ({db['runs']} runs)",
        f"disk       {found['disk']['free_mb']} MB free at {found['disk']['home']}",
        *(f"PROBLEM    {problem}" for problem in found["problems"]),
        "all is well" if found["ok"] else "something essential is broken, see above",
    ]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _machine(problems: list[str]) -> Json:
    try:
        import torch

        from specdemo.target import auto_device, auto_dtype

        device = auto_device()
        name = torch.cuda.get_device_name(device) if device != "cpu" else platform.processor() or platform.machine()
        return {
            "device": device,
            "device_name": name,
            "dtype": auto_dtype(device),
            "threads": torch.get_num_threads(),
            "compiler": _compiler(device),
        }
    except (ImportError, OSError, RuntimeError) as error:
        problems.append(f"torch does not work here: {error}")
        return {"device": None, "device_name": None, "dtype": None, "threads": None, "compiler": None}


def _compiler(device: str) -> str | None:
    """What torch.compile would compile with: Triton on a GPU, a C++ compiler on the CPU; None if it is missing."""
    if device != "cpu":
        try:
            return f"triton {version('triton')}"
        except PackageNotFoundError:
            return None
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _model(fetch: bool, verify: bool, problems: list[str]) -> Json:
    folder = models.embedded_folder()
    try:
        if fetch:
            models.embedded_model()
        found = [] if "SPECDEMO_MODEL" in os.environ else models.problems(folder, full=verify)
    except SpecdemoError as error:
        found = [str(error)]
    problems.extend(found)
    there = not found and folder.is_dir()
    source = models.describe(folder)["source"] if there else None
    return {"path": str(folder) if there else None, "source": source, "verified": verify and there}


def _pool(name: str) -> Json:
    pool = read_pool(name)
    return {"name": name, "title": pool.title, "target": pool.target.source, "arms": [arm.name for arm in pool.arms]}


def _database(db: str | None) -> Json:
    """Path, runs in it, and what keeps runs from being stored. Makes the file if it is not there."""
    from specdemo.store import Store, default_db

    path = Path(db) if db else default_db()
    store = Store(path)
    try:
        store.flush()
        problem = store.problem
        runs = None if problem else len(store.list_runs(limit=1_000_000))
    except SpecdemoError as error:
        runs, problem = None, str(error)
    finally:
        store.close()
    return {"path": str(store.path), "writable": problem is None, "runs": runs, "problem": problem}


def _free_mb(folder: Path) -> int:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free // 1_000_000
