"""Files of JSON lines that grow while something long runs, so that it goes on where it was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file, if there is one; the rest of a line that was cut off by a kill is removed from it."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]
