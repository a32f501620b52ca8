"""``config.json`` of a draft head: read, and its values checked one by one (``file``: the weights it lies beside)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdemo.types import SpecdemoError

CONFIG = "config.json"


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint.

    Raises:
        SpecdemoError: no folder, no such file, or no JSON object in it.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise SpecdemoError(f"{folder} is not a folder. Give the one that holds the head's config.json and weights.")
    if not path.is_file():
        raise SpecdemoError(
            f"{path} is missing: without it nobody knows how the head was built. Copy it from the repository that the "
            "weights come from."
        )
    return read_json(path)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        SpecdemoError: there is none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecdemoError(f"{path} cannot be read as JSON: {error}. Download it again.") from error
    if not isinstance(content, dict):
        raise SpecdemoError(f"{path} is not a JSON object. Download it again.")
    return content


def whole(file: Path, settings: Mapping[str, Any], *keys: str, limit: int = 1 << 24) -> int:
    """The first of ``keys`` that is set, which must be a positive whole number, at most ``limit``.

    Raises:
        SpecdemoError: none of them is.
    """
    value = next((settings[key] for key in keys if settings.get(key) is not None), None)
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= limit:
        return value
    raise SpecdemoError(
        f"{file.parent / CONFIG}: {keys[0]} is {'missing' if value is None else repr(value)}; it must be a whole "
        f"number from 1 to {limit}. Use the config.json published with these weights."
    )


def number(file: Path, settings: Mapping[str, Any], key: str, default: float) -> float:
    """A positive number of the config, ``default`` where it is not set.

    Raises:
        SpecdemoError: it is something else.
    """
    value = default if settings.get(key) is None else settings[key]
    if isinstance(value, (int, float)) and 0 < value < math.inf:
        return float(value)
    raise SpecdemoError(f"{file.parent / CONFIG}: {key} is {value!r}; it must be a number above 0.")


def table(file: Path, settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A table within the config, empty where it is not set.

    Raises:
        SpecdemoError: it is something else.
    """
    value = settings.get(key) or {}
    if isinstance(value, dict):
        return value
    raise SpecdemoError(f"{file.parent / CONFIG}: {key} is {value!r}; it must be a JSON object.")


def rope(file: Path, settings: Mapping[str, Any]) -> tuple[float, float]:
    """Base and divisor of a head's rotary angles, as its own config has them: 10000 and 1 where it has none.

    The target's are not the head's: EAGLE-3 for Llama 3.1 runs at 10000 under a target at 500000. "dynamic" scaling
    does nothing below the window it was made for and is read as none: longer texts get worse drafts.

    Raises:
        SpecdemoError: another kind of scaling, or of rotary embedding.
    """
    parameters = table(file, settings, "rope_parameters")  # transformers 5
    scaling = table(file, settings, "rope_scaling") or parameters
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    partial = {**parameters, **settings}.get("partial_rotary_factor")
    if kind not in ("default", "linear", "dynamic") or partial not in (None, 1):
        raise SpecdemoError(
            f"{file.parent / CONFIG}: rope_scaling is of type {kind!r}, partial_rotary_factor {partial}. Heads with "
            "default, linear or dynamic rotary embedding of all dimensions can be read; choose another head."
        )
    theta = number(file, parameters | _told(settings, "rope_theta"), "rope_theta", 10000.0)
    return theta, number(file, scaling, "factor", 1.0) if kind == "linear" else 1.0


def _told(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: settings[key]} if settings.get(key) is not None else {}
