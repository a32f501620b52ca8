"""Pools: small TOML files that name a target and the arms that draft for it. The format is in docs/pools.md."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo import models
from specdemo.types import Arm, Pool, SpecdemoError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from specdemo.target import HFTarget

SHIPPED = Path(__file__).parent / "pools"
DEFAULT = "embedded"
EMBEDDED = "embedded"  # the target source that models.py fetches
TOML_TYPES = {str: "string", int: "whole number", list: "list", dict: "table"}
COLOUR = re.compile(r"#[0-9A-Fa-f]{6}")


@dataclass(frozen=True, slots=True)
class TargetEntry:
    """``[target]`` of a pool file. ``source``: "embedded", a folder (absolute or relative to the file), or a Hub id."""

    source: str
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ArmEntry:
    """One of ``[[arms]]`` of a pool file; fields as in :class:`specdemo.types.Arm`, ``options`` go to the family."""

    name: str
    family: str
    domain: str = ""
    colour: tuple[str, str] = ("", "")
    k: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolFile:
    """A pool file, read and checked but not loaded.

    Attributes:
        name: the file's name without ``.toml``. ``path``: where it lies. ``sha256``: of its bytes.
        title: one line for people.
        gpu: gigabytes of GPU memory it needs, 0: it runs anywhere.
    """

    name: str
    path: Path
    sha256: str
    title: str
    target: TargetEntry
    arms: tuple[ArmEntry, ...]
    gpu: int = 0


def pool_names() -> list[str]:
    """The pools that come with specdemo: the default first, then those that run anywhere, then those for GPUs."""
    names = [path.stem for path in SHIPPED.glob("*.toml")]
    return sorted(names, key=lambda name: (name != DEFAULT, read_pool(SHIPPED / f"{name}.toml").gpu, name))


def offered_pools() -> list[str]:
    """The pools to offer on this machine: without a GPU's driver, none that would download gigabytes in vain."""
    has_gpu = shutil.which("nvidia-smi") is not None
    return [name for name in pool_names() if has_gpu or not read_pool(name).gpu]


def read_pool(name_or_path: str | Path) -> PoolFile:
    """Read a shipped pool by name, or any pool file by path, without loading a model.

    Raises:
        SpecdemoError: no such file, no valid TOML, or a key that is unknown, missing or of the wrong type.
    """
    path = _find(name_or_path)
    try:
        content = path.read_bytes()
        table = tomllib.loads(content.decode("utf-8"))
    except (OSError, ValueError) as error:
        raise SpecdemoError(f"The pool file {path} cannot be read: {error}.") from error
    keys = {"title": str, "target": dict, "arms": list, "gpu": int}
    _check_keys(path, "the file", table, keys, required=("target",))
    target = TargetEntry(**_checked(path, "[target]", table["target"], {"source": str, "revision": str}, ("source",)))
    arms = tuple(_arm(path, number, entry) for number, entry in enumerate(table.get("arms", []), start=1))
    if len({arm.name for arm in arms}) < len(arms):
        raise SpecdemoError(f"{path}: two arms have the same name; names tell the arms of a pool apart.")
    title, gpu = table.get("title", path.stem), table.get("gpu", 0)
    return PoolFile(path.stem, path, sha256(content).hexdigest(), title, target, arms, gpu)


def load_pool(
    name_or_path: str | Path,
    dtype: str = "auto",
    device: str = "auto",
    compile: bool = False,
    progress: bool = True,
    arms: bool = True,
) -> Pool:
    """Load a pool: fetch the target if need be, load it, load the drafters.

    Args:
        name_or_path: one of :func:`pool_names`, or the path of a pool file.
        dtype: "auto", or "float32", "bfloat16" ... of the target. ``device``: "auto", "cpu", "cuda" ...
        compile: score through compiled code (see target.py).
        progress: bars and notes on standard error while the target is fetched.
        arms: load the drafters; False: the target alone.

    Returns:
        the pool; ``info`` holds name, title, hash (of file and weights), target (source in words), target_path,
        weights (sha256 of the target's and of each model-based arm's), dtype, device, threads and compile.

    Raises:
        SpecdemoError: the file is wrong, names what does not exist, or something in it cannot be loaded.
    """
    from specdemo.target import HFTarget

    file = read_pool(name_or_path)
    for arm in file.arms:
        _check_family(file.path, arm)
    path = _target_path(file, progress)
    target = HFTarget.load(str(path), dtype=dtype, device=device, compile=compile, revision=file.target.revision)
    loaded = tuple(_load_arm(file.path, entry, target) for entry in (file.arms if arms else ()))
    return Pool(file.name, target, loaded, _info(file, path, target, compile))


def _find(name_or_path: str | Path) -> Path:
    shipped = SHIPPED / f"{name_or_path}.toml"
    if Path(name_or_path).name == str(name_or_path) and shipped.is_file():
        return shipped
    path = Path(name_or_path).expanduser()
    if path.suffix == ".toml" and path.is_file():
        return path.resolve()
    raise SpecdemoError(
        f"There is no pool {str(name_or_path)!r}. Choose one of: {', '.join(pool_names())}; or give the path of a "
        "pool file (*.toml)."
    )


def _arm(path: Path, number: int, entry: Any) -> ArmEntry:
    where = f"[[arms]] number {number}"
    keys = {"name": str, "family": str, "domain": str, "colour": list, "k": int, "options": dict}
    values = _checked(path, where, entry, keys, ("name", "family"))
    colours = values.get("colour", ["", ""])
    if "colour" in values and (len(colours) != 2 or not all(COLOUR.fullmatch(str(c)) for c in colours)):
        raise SpecdemoError(f'{path}: colour of {where} is {colours}; it must be two like "#0072B2": light, dark page.')
    if values.get("k", 0) < 0:
        raise SpecdemoError(f"{path}: k of {where} is {values['k']}; a draft length is at least 0.")
    return ArmEntry(**{**values, "colour": tuple(colours)})


def _checked(path: Path, where: str, table: Any, keys: Mapping[str, type], required: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise SpecdemoError(f"{path}: {where} must be a table with the keys {', '.join(keys)}.")
    _check_keys(path, where, table, keys, required)
    return table


def _check_keys(
    path: Path, where: str, table: Mapping[str, Any], keys: Mapping[str, type], required: tuple[str, ...]
) -> None:
    for key, value in table.items():
        if key not in keys:
            raise SpecdemoError(f"{path}: {where} has an unknown key {key!r}. It may have: {', '.join(keys)}.")
        if not isinstance(value, keys[key]) or isinstance(value, bool):
            raise SpecdemoError(f"{path}: {key} of {where} is {value!r}; it must be a {TOML_TYPES[keys[key]]}.")
    for key in required:
        if key not in table:
            raise SpecdemoError(f"{path}: {where} lacks the key {key!r}.")


def _check_family(path: Path, arm: ArmEntry) -> None:
    from specdemo.drafters import DRAFTERS

    if arm.family not in DRAFTERS:
        raise SpecdemoError(
            f"{path}: arm {arm.name!r} has an unknown family {arm.family!r}. There are: {', '.join(DRAFTERS)}."
        )
    allowed = DRAFTERS[arm.family].options
    missing = [key for key, default in allowed.items() if default is None and key not in arm.options]
    if missing:
        raise SpecdemoError(f"{path}: arm {arm.name!r} lacks the option {missing[0]!r}, as {arm.family!r} needs it.")
    for key in arm.options:
        if key not in allowed:
            raise SpecdemoError(
                f"{path}: arm {arm.name!r} has an unknown option {key!r}. Family {arm.family!r} may have: "
                f"{', '.join(allowed) or 'none'}."
            )


def _target_path(file: PoolFile, progress: bool) -> str | Path:
    if file.target.source == EMBEDDED:
        return models.embedded_model(progress)
    return _beside(file.path, file.target.source)


def _beside(pool_file: Path, source: str) -> str | Path:
    """A folder that comes with specdemo ("assets/..."), or one named relative to the pool file, if there is one; else
    what was given (a Hub id)."""
    if source.startswith("assets/"):
        return models.shipped("assets") / source.removeprefix("assets/")
    folder = pool_file.parent / Path(source).expanduser()
    return folder if folder.is_dir() else source


def _load_arm(path: Path, entry: ArmEntry, target: HFTarget) -> Arm:
    from specdemo.drafters import DRAFTERS

    options = dict(entry.options)
    if isinstance(options.get("model"), str) and options["model"] != "target":
        options["model"] = str(_beside(path, options["model"]))
    try:
        start = DRAFTERS[entry.family].load(target, **options)
    except (SpecdemoError, TypeError) as error:
        raise SpecdemoError(f"{path}: arm {entry.name!r} cannot be loaded: {error}") from error
    nodes = int(options.get("nodes", 0))
    return Arm(entry.name, entry.family, start, entry.domain, entry.colour, entry.k, nodes)


def _info(file: PoolFile, path: str | Path, target: HFTarget, compile: bool) -> dict[str, Any]:
    import torch

    described = _describe(path, file.target.revision)
    weights = {"target": described["sha256"]}
    for arm in file.arms:
        model = arm.options.get("model", "target")  # arms without one have no weights, either
        if model != "target":
            weights[arm.name] = _describe(_beside(file.path, model))["sha256"]
    return {
        "name": file.name,
        "title": file.title,
        "hash": models.hash_of([file.sha256, weights]),
        "target": described["source"],
        "target_path": str(path),
        "weights": weights,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "threads": torch.get_num_threads(),
        "compile": compile,
    }


def _describe(path: str | Path, revision: str | None = None) -> dict[str, str]:
    """A Hub repository is identified by its revision; without one the pool file does not fix the weights."""
    if Path(path).is_dir():
        return models.describe(Path(path))
    source = f"hub {path}@{revision or 'latest'}"
    return {"source": source, "sha256": models.hash_of(source)}
