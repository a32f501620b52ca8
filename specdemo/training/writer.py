"""The target writes many answers at once: rows of one forward, each the newest token of a text of its own.

A row whose answer is complete takes the next prompt, so that no row waits for a longer one; a prompt that is answered
several times in a row is read once. Rows are written into slots as everywhere (slots.py): text i owns slots i * size to
(i + 1) * size - 1 of one cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specdemo.slots import SlotCache
from specdemo.target import HFTarget

STEP = 32  # the slots that a forward sees are rounded up to a multiple of this


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be written. ``temperature`` 0: greedy. ``seed``: of this answer, whatever is written beside it."""

    prompt: tuple[int, ...]
    temperature: float = 0.0
    seed: int = 0


@dataclass(slots=True)
class _Row:
    """An answer that is being written."""

    number: int
    task: Task
    answer: list[int] = field(default_factory=list)
    dice: torch.Generator = field(default_factory=torch.Generator)

    def pick(self, logits: Tensor) -> int:
        """The next token from logits [V]."""
        if not self.task.temperature:
            return int(logits.argmax())
        law = torch.softmax(logits.float().cpu() / self.task.temperature, -1)
        return int(torch.multinomial(law, 1, generator=self.dice))


class _Side(SlotCache):
    """Texts side by side: every row of a forward sees the first ``top`` slots of its own text."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], slots: Tensor, texts: int, top: int) -> None:
        super().__init__(keys, values, slots)
        self.texts, self.top = texts, top

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As :meth:`SlotCache.update`; keys and values come as [texts, heads, top, size]."""
        keys, values = super().update(key_states, value_states, layer_idx)
        return self._apart(keys), self._apart(values)

    def _apart(self, x: Tensor) -> Tensor:
        heads, slots, size = x.shape[1:]
        return x.view(heads, self.texts, slots // self.texts, size)[:, :, : self.top].transpose(0, 1)


class Writer:
    """Room for ``rows`` texts of at most ``size`` tokens each, ``longest`` of them an answer's."""

    def __init__(self, target: HFTarget, rows: int, size: int, longest: int) -> None:
        self.target, self.rows, self.size, self.longest = target, rows, min(size, target.window), longest
        self.keys, self.values = target.new_slots(rows * self.size)
        self.columns = torch.arange(self.size, device=target.device)
        self._read: tuple[tuple[int, ...], slice] = (), slice(0)  # the prompt read last, and its text's slots

    @torch.no_grad()
    def write(self, tasks: Iterable[Task]) -> Iterator[tuple[int, list[int]]]:
        """Numbers of the tasks and their answers, in the order in which they are complete. An answer ends with an end
        token, or after ``longest`` tokens; prompts that leave no room for that are left out."""
        waiting = ((i, t) for i, t in enumerate(tasks) if len(t.prompt) + self.longest <= self.size)
        live: list[_Row | None] = [self._begin(place, next(waiting, None)) for place in range(self.rows)]
        tokens, positions = [0] * self.rows, [0] * self.rows
        while any(live):
            for place, row in enumerate(live):
                if row:
                    tokens[place] = row.answer[-1] if row.answer else row.task.prompt[-1]
                    positions[place] = len(row.task.prompt) + len(row.answer) - 1
            logits = self._forward(torch.tensor(tokens), torch.tensor(positions))
            for place, row in enumerate(live):
                if row is None:
                    continue
                row.answer.append(row.pick(logits[place]))
                if row.answer[-1] in self.target.eos or len(row.answer) == self.longest:
                    yield row.number, row.answer
                    live[place] = self._begin(place, next(waiting, None))

    def _begin(self, place: int, given: tuple[int, Task] | None) -> _Row | None:
        """Read a prompt but for its last token, which the next forward takes."""
        if given is None:
            return None
        number, task = given
        here = slice(place * self.size, (place + 1) * self.size)
        if self._read[0] == task.prompt:
            self._copy(self._read[1], here)
        elif len(task.prompt) > 1:
            self._read_prompt(task.prompt, here)
        self._read = task.prompt, here
        row = _Row(number, task)
        row.dice.manual_seed(task.seed)
        return row

    def _read_prompt(self, prompt: tuple[int, ...], here: slice) -> None:
        read = torch.tensor([prompt[:-1]], device=self.columns.device)
        slots = self.columns[: read.shape[1]]
        behind = slots[:, None] - self.columns
        keys, values = ([x[:, :, here] for x in side] for side in (self.keys, self.values))
        self.target.read(keys, values, read, slots[None], slots, self.target.masks(behind >= 0, behind))

    def _copy(self, there: slice, here: slice) -> None:
        """The prompt's keys and values to another text; what is behind the prompt is written over."""
        for x in (*self.keys, *self.values):
            x[:, :, here] = x[:, :, there].clone()

    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """[rows, V] logits after each row's newest token."""
        device = self.columns.device
        tokens, positions = tokens.to(device), positions.to(device)
        top = min(self.size, (int(positions.max()) // STEP + 1) * STEP)
        behind = positions[:, None] - self.columns[:top]
        slots = torch.arange(self.rows, device=device) * self.size + positions
        cache = _Side(self.keys, self.values, slots, self.rows, top)
        return self.target.logits(cache, tokens[None], positions[None], self.target.masks(behind >= 0, behind))[0]
