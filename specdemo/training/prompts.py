"""Prompts to train draft heads on, written from templates, so that anybody can write them again.

``templates/<domain>.json`` holds *frames* (prompts with slots in braces) and *slots* (what may stand there); the slots
of ``templates/common.json`` serve every domain. What may stand in a frame:

* ``{town}``: one of the slot's values, not one that this prompt has drawn already, while there are others. Values may
  have slots of their own.
* ``{town:a}``: the same value wherever the prompt says ``{town:a}``.
* ``{passage.question}``: a field of a value that is a record. All fields come from one record per prompt (one per
  label, with ``{passage.question:a}``); if the field is a list, one of it is drawn like a slot's value.
* ``{#3-40}``: a whole number from 3 to 40, ``{#3-40:n}`` the same one everywhere.
* ``{^town}``: with a capital first letter.

Other braces, as in code, stay as they are.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from importlib import resources
from typing import Any

from specdemo.types import SpecdemoError

DOMAINS = ("code", "maths", "sql", "translation", "summarisation", "rag", "science", "chat", "questions")

_SLOT = re.compile(r"\{(\^?)(?:#(\d+)-(\d+)|([a-z]\w*)(?:\.(\w+))?)(?::(\w+))?\}")
_PATIENCE = 2_000  # so many prompts in a row that were written before: there are (next to) no others


def write_prompts(domain: str, count: int, seed: int = 0) -> list[str]:
    """``count`` different prompts of a domain: the same ones for the same seed, and a smaller count is their beginning.

    Raises:
        SpecdemoError: the domain is unknown, or its templates do not give that many different prompts.
    """
    if domain not in DOMAINS:
        raise SpecdemoError(f"There are no templates for the domain {domain!r}; choose one of: {', '.join(DOMAINS)}.")
    if count < 0:
        raise SpecdemoError(f"count is {count}; it must be at least 0.")
    frames, slots = _templates(domain)
    rng = random.Random(f"{domain}:{seed}")
    prompts: dict[str, None] = {}
    repeated = 0
    while len(prompts) < count:
        prompt = _Writer(slots, rng).fill(rng.choice(frames))
        repeated = repeated + 1 if prompt in prompts else 0
        if repeated == _PATIENCE:
            raise SpecdemoError(
                f"The templates for {domain!r} gave {len(prompts)} different prompts, not {count}; "
                f"ask for fewer, or add frames or slots to specdemo/training/templates/{domain}.json."
            )
        prompts[prompt] = None
    return list(prompts)


@cache
def _templates(domain: str) -> tuple[list[str], dict[str, list[Any]]]:
    """The frames of a domain, and its slots with the common ones."""
    folder = resources.files("specdemo.training") / "templates"
    common, own = (json.loads((folder / f"{name}.json").read_text("utf-8")) for name in ("common", domain))
    return own["frames"], common["slots"] | own["slots"]


class _Writer:
    """Writes one prompt: fills slots and remembers what it drew."""

    def __init__(self, slots: dict[str, list[Any]], rng: random.Random) -> None:
        self.slots = slots
        self.rng = rng
        self.kept: dict[tuple[str, str], Any] = {}  # (slot, label) -> text or record
        self.drawn: dict[str, set[int]] = {}  # slot -> positions of the values drawn

    def fill(self, text: str) -> str:
        return _SLOT.sub(self._value, text)

    def _value(self, match: re.Match[str]) -> str:
        capital, low, high, slot, field, label = match.groups(default="")
        key = (slot or f"{low}-{high}", label)
        if key in self.kept:
            value = self.kept[key]
        else:
            value = self._draw(slot, self.slots[slot]) if slot else str(self.rng.randint(int(low), int(high)))
            if isinstance(value, str):
                value = self.fill(value)
            if label or field:
                self.kept[key] = value
        if field:
            value = value[field]
            value = self.fill(value if isinstance(value, str) else self._draw(f"{key}.{field}", value))
        text = str(value)
        return text[:1].upper() + text[1:] if capital else text

    def _draw(self, name: str, values: list[Any]) -> Any:
        """One of the values, if possible one that was not drawn under this name before."""
        drawn = self.drawn.setdefault(name, set())
        fresh = [i for i in range(len(values)) if i not in drawn] or range(len(values))
        position = self.rng.choice(fresh)
        drawn.add(position)
        return values[position]
