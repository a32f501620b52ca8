"""One run of the target: reads the prompt, scores blocks, commits what was accepted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specdemo.slots import Block, Mask, block, is_chain
from specdemo.types import Proposal, SpecdemoError

if TYPE_CHECKING:
    from specdemo.target import HFTarget

Forward = Callable[..., tuple[Tensor, Tensor]]  # :meth:`HFTarget.forward`, or the same compiled
PREFILL_ROWS = 512  # tokens of the prompt read per forward


class HFSession:
    """One run's keys and values, as :class:`specdemo.types.TargetSession`.

    Slot i holds the token at position i for all committed tokens but the last one, which is row 0 of every block.
    """

    def __init__(self, target: HFTarget, size: int, rows: int, compiled: bool = True) -> None:
        self.target, self.size, self.rows = target, size, rows
        self.compiled = target.compiled if compiled else None
        self.compile_ms = 0.0
        self.forward = self._forward(trees=False)
        if target.compile_note:
            self.compiled = None
        self.keys, self.values = target.new_slots(size)
        self.columns = torch.arange(size, device=target.device)
        self.base, self.last = -1, -1
        self.hidden: Tensor | None = None

    def prefill(self, tokens: Sequence[int]) -> None:
        """Read the prompt (all of it; at least one token): all but its last token, which the first block scores."""
        if not tokens or len(tokens) + self.rows > self.size:
            raise SpecdemoError(
                f"The prompt has {len(tokens)} tokens; this session holds 1 to {self.size - self.rows}."
            )
        hidden = []
        for start in range(0, len(tokens) - 1, PREFILL_ROWS):
            slots = self.columns[start : min(start + PREFILL_ROWS, len(tokens) - 1)]
            behind = slots[:, None] - self.columns
            mask = self.target.masks(behind >= 0, behind)
            chunk = torch.tensor([tokens[start : start + len(slots)]], device=self.target.device)
            hidden.append(self.target.read(self.keys, self.values, chunk, slots[None], slots, mask)[0])
        if self.target.layers:
            nothing = torch.empty(0, self.target.width, dtype=self.target.dtype, device=self.target.device)
            self.hidden = torch.cat([nothing, *hidden])
        self.base, self.last = len(tokens) - 1, tokens[-1]

    def score(self, proposal: Proposal) -> Tensor:
        """One forward over [last committed token, *draft, padding]: float [n + 1, V] logits, see TargetSession."""
        inputs = self.inputs(proposal)
        forward = self.forward if inputs[-1] is None else self._forward(trees=True)
        logits, hidden = (out[0, : len(proposal.tokens) + 1] for out in forward(*inputs))
        if self.target.layers:
            self.hidden = hidden
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def inputs(self, proposal: Proposal) -> tuple[Any, ...]:
        """Arguments of :meth:`HFTarget.forward` that score a proposal after the committed text."""
        n, end = len(proposal.tokens), self.base + self.rows
        if self.base < 0 or n >= self.rows or end > self.size:
            raise SpecdemoError(
                f"A draft of {n} tokens at position {self.base} does not fit a session of {self.rows} rows and "
                f"{self.size} slots (or its prompt was not read yet). Start the session with larger capacity or rows."
            )
        parents = tuple(proposal.parent(i) for i in range(n))
        rows = block(parents, self.rows, self.target.device)
        tokens = torch.tensor([[self.last, *proposal.tokens] + [0] * (self.rows - n - 1)], device=self.target.device)
        mask, layout = self._view(rows, is_chain(parents))
        positions = (self.base + rows.depth).clamp(max=self.target.window - 1)[None]
        return self.keys, self.values, tokens, positions, self.columns[self.base : end], mask, layout

    def _forward(self, trees: bool) -> Forward:
        """The forward of this run, compiled or eager: never both in one run, because their bits differ."""
        if self.compiled is None:
            return self.target.forward
        begin = time.perf_counter()
        forward = self.compiled.forward(trees)
        self.compile_ms += 1e3 * (time.perf_counter() - begin)
        if forward is None and trees:
            raise SpecdemoError(f"{self.compiled.note}. Start again: from now on all runs are scored that way.")
        return forward or self.target.forward

    def _view(self, rows: Block, chain: bool) -> tuple[Mask, Tensor | None]:
        """Mask and layout of a block: what its rows see, and where."""
        here, position = slice(self.base, self.base + self.rows), (self.base + rows.depth)[:, None]
        if chain or self.target.exact_trees:
            layout = None if chain else self.columns.repeat(self.rows, 1)
            if layout is not None:
                layout[:, here] = self.base + rows.ancestor
            return self.target.masks(self.columns <= position, position - self.columns), layout
        place, allowed = self.columns.clone(), (self.columns < self.base).repeat(self.rows, 1)
        place[here], allowed[:, here] = position[:, 0], rows.sees
        return self.target.masks(allowed, position - place), None

    def commit(self, path: Sequence[int], token: int) -> None:
        """Keep the accepted nodes of the last proposal and append the target's own token.

        A chain's nodes already lie where they belong; a tree's are moved there.
        """
        if list(path) != list(range(len(path))):
            source = torch.tensor(path, device=self.target.device) + self.base + 1
            for layer in (*self.keys, *self.values):
                layer[:, :, self.base + 1 : self.base + 1 + len(path)] = layer[:, :, source]
        self.base, self.last = self.base + len(path) + 1, token
