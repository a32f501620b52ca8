"""Prompt files: JSON lines, ours or anybody's, conversations of several turns included."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: one message, or several, each after the answer to the one before."""

    id: str
    domain: str
    turns: tuple[str, ...]

    @property
    def prompt(self) -> str:
        """The first message."""
        return self.turns[0]


def read_prompts(path: Path) -> list[Prompt]:
    """The rows of a file of JSON lines.

    Each has ``prompt`` (a text) or ``turns`` (a list of texts, as in Spec-Bench's questions, arXiv 2401.07851), and may
    have ``id`` or ``question_id`` (else file name and line number) and ``domain`` or ``category`` (else the file name).

    Raises:
        OSError, ValueError, KeyError, TypeError: it cannot be read, or a row is something else.
    """
    lines = path.read_text("utf-8").splitlines()
    return [_prompt(json.loads(line), path.stem, i) for i, line in enumerate(lines, start=1) if line.strip()]


def _prompt(row: dict[str, Any], stem: str, line: int) -> Prompt:
    turns = row["turns"] if "turns" in row else [row["prompt"]]
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"line {line}: a prompt is a text, turns are a list of texts")
    name = row.get("id", row.get("question_id", f"{stem}-{line}"))
    return Prompt(str(name), str(row.get("domain", row.get("category", stem))), tuple(turns))
