"""Heads of one architecture that run together: one key-value cache, one batch (EAGLE heads and their low-rank deltas).

What a member of a bank may change lies behind its keys and values, so the cache of committed text is everybody's:
switching from one member to another costs nothing, and one batched forward tells what each of them would have drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdemo.drafters.columns import Columns, Union
from specdemo.drafters.eagle_head import Delta, EagleHead, Entered, Turn, attend
from specdemo.drafters.product import Product
from specdemo.types import Verified


@dataclass(frozen=True, slots=True)
class Member:
    """One head of a bank.

    Attributes:
        name: of the head. ``delta``: None if it is the common weights as they are.
        vocab: [draft vocabulary] target ids it can draft, None: all, in order.
        lm_head: [draft vocabulary, hidden].
    """

    name: str
    delta: Delta | None
    vocab: Tensor | None
    lm_head: Tensor


class Bank:
    """What all runs share: the common weights, the members, and the target's embedding.

    Attributes:
        embedding: [V, hidden] the target's. ``columns``: tells which columns of the target's features the heads read
            (other heads of the pool, loaded later, may add columns).
        rows: [V, hidden] the target's LM head, if members take rows of it: then tokens of the text that are not in a
            member's vocabulary are added to it while the text is written. None: vocabularies stay as they are.
    """

    def __init__(self, head: EagleHead, embedding: Tensor, columns: Callable[[], Tensor], rows: Tensor | None) -> None:
        self.head, self.embedding, self.columns, self.rows = head, embedding, columns, rows
        self.members: list[Member] = []
        self.lm_heads: list[Product] = []
        self._everybody: tuple[Delta | None, Union] | None = None
        head.prepare()

    def join(self, member: Member) -> int:
        """Add a member, before the first run; returns its number (that of the member of this name, if there is one)."""
        names = [m.name for m in self.members]
        if member.name in names:
            return names.index(member.name)
        self.members.append(member)
        self.lm_heads.append(Product(member.lm_head))
        self._everybody = None
        return len(self.members) - 1

    @property
    def everybody(self) -> tuple[Delta | None, Union]:
        """All members' deltas as one (None: nobody has any), and their vocabularies as one."""
        if self._everybody is None:
            deltas = [m.delta for m in self.members]
            stack = _stack(self.head, deltas) if len(deltas) > 1 and any(d is not None for d in deltas) else deltas[0]
            everything = torch.arange(len(self.embedding), device=self.embedding.device)
            vocabularies = [everything if m.vocab is None else m.vocab for m in self.members]
            self._everybody = stack, Union(vocabularies, [m.lm_head for m in self.members], self.rows)
        return self._everybody

    def start(self, capacity: int, room: int) -> BankRun:
        """A run of at most ``capacity`` committed tokens and ``room`` drafted ones."""
        return BankRun(self, capacity + room)


class BankRun:
    """The committed text of one run as the bank's heads see it.

    Slot i of keys and values is the pair (features of token i, embedding of token i + 1), from which token i + 2 is
    drafted; drafts lie behind ``length`` and are simply overwritten.
    """

    def __init__(self, bank: Bank, slots: int) -> None:
        self.bank = bank
        c, like = bank.head.config, bank.embedding
        self.keys = like.new_zeros(c.num_kv_heads, slots, c.head_dim)
        self.values = torch.zeros_like(self.keys)
        self.mixed = like.new_zeros(slots, bank.head.width)  # what members start from
        self.queries = like.new_zeros(slots, c.num_heads * c.head_dim)
        self.residual = like.new_zeros(slots, c.hidden_size)
        self.positions = torch.arange(slots, device=like.device)
        self.cos, self.sin = (t.to(like.dtype) for t in bank.head.turn(self.positions))
        self.features = bank.columns()
        self.stack, union = bank.everybody
        self.columns = Columns(union)
        self.text = 0  # tokens read; pairs are one fewer
        self.length = 0
        self._judged: tuple[int, Tensor, Tensor] | None = None  # first pair, everybody's outputs and logits from there

    def read(self, seen: int, verified: Verified) -> None:
        """Add committed tokens, the first of which is token number ``seen`` of the text; what is known is skipped."""
        tokens = verified.tokens[self.text - seen :]
        if not tokens:
            return
        assert verified.features is not None
        ids = torch.tensor(tokens, device=self.keys.device)
        features = verified.features[self.text - seen :]
        if self.text == 0:  # nothing comes before the first token
            ids, features = ids[1:], features[1:]
        self.columns.read(tokens, self.text)
        self.text += len(tokens)
        here = slice(self.length, self.length + len(ids))
        head, self.length, self._judged = self.bank.head, here.stop, None
        entered = self._enter(ids, head.fuse(features[:, self.features].to(self.keys.dtype)), here, here)
        self.mixed[here], self.queries[here], self.residual[here] = entered.mixed, entered.queries, entered.residual

    def judge(self, start: int) -> Tensor:
        """[members, n + 1, columns] logits of everybody at the position ``start`` (at least 2), the n - 1 others up to
        the end of the text, and the one after it; computed once for all that ask."""
        first = start - 2
        if self._judged is None or self._judged[0] > first:
            outputs = self._run(slice(first, self.length), self.stack)
            logits = self.columns.logits(self.bank.head.readout(outputs, self.stack), start)
            self._judged = first, outputs.expand(len(logits), -1, -1), logits
        before, _, logits = self._judged
        return logits[:, first - before :]

    def first(self, member: int) -> tuple[Tensor, Tensor]:
        """A member's raw output [1, hidden] for the last pair, and its logits [1, draft vocabulary + brought]."""
        if self._judged is not None:
            _, outputs, logits = self._judged
            return outputs[member, -1:], logits[member, -1:, self.columns.own(member).columns]
        output = self.last(member)
        return output, self.logits(member, output)

    def last(self, member: int) -> Tensor:
        """[1, hidden] raw output of a member alone for the last pair."""
        return self._run(slice(self.length - 1, self.length), self.bank.members[member].delta)[0]

    def extend(
        self, member: int, tokens: Tensor, states: Tensor, at: int, level: int, mask: Tensor | None = None
    ) -> Tensor:
        """Outputs [n, hidden] of a member for drafted pairs.

        Args:
            tokens: [n] drafted; ``states``: [n, hidden] what the step before fed back.
            at: how many drafted slots are in use. ``level``: how many drafted tokens are above these on their paths.
            mask: [n, at + n] which drafted slots each sees; None: all.
        """
        delta, end = self.bank.members[member].delta, self.length + at + len(tokens)
        position = slice(self.length + level, self.length + level + 1)
        entered = self._enter(tokens, states, slice(self.length + at, end), position)
        if mask is not None:
            mask = F.pad(mask, (self.length, 0), value=True)
        return self._finish(entered, position, delta, end, mask)[0]

    def logits(self, member: int, outputs: Tensor) -> Tensor:
        """[n, hidden] raw outputs -> [n, draft vocabulary + brought] logits of what a member may draft after the text,
        see :class:`Own`."""
        states = self.bank.head.readout(outputs[None], self.bank.members[member].delta)[0]
        logits, brought = self.bank.lm_heads[member](states), self.columns.own(member).rows
        return logits if brought is None else torch.cat([logits, F.linear(states, brought)], -1)

    def vocab(self, member: int) -> Tensor | None:
        """[draft vocabulary + brought] target ids of these logits' columns; None: all, in order."""
        return None if self.bank.members[member].vocab is None else self.columns.own(member).ids

    def state(self, member: int, outputs: Tensor) -> Tensor:
        """[n, hidden] what a member's raw outputs feed back into its next step."""
        return self.bank.head.feed_back(outputs[None], self.bank.members[member].delta)[0]

    def _enter(self, tokens: Tensor, states: Tensor, slots: slice, positions: slice) -> Entered:
        embedded = F.embedding(tokens, self.bank.embedding)
        entered = self.bank.head.enter(embedded, states, self._turn(positions))
        self.keys[:, slots], self.values[:, slots] = entered.keys, entered.values
        return entered

    def _run(self, here: slice, delta: Delta | None) -> Tensor:
        """[members of the delta, n, hidden] outputs for committed pairs."""
        keys, values = self.keys[:, here], self.values[:, here]
        entered = Entered(self.mixed[here], self.residual[here], self.queries[here], keys, values)
        mask = self.positions[here, None] >= self.positions[: here.stop] if here.stop - here.start > 1 else None
        return self._finish(entered, here, delta, here.stop, mask)

    def _finish(self, entered: Entered, positions: slice, delta: Delta | None, end: int, mask: Tensor | None) -> Tensor:
        queries = self.bank.head.queries(entered.mixed[None], entered.queries[None], self._turn(positions), delta)
        attended = attend(queries, self.keys[:, :end], self.values[:, :end], mask)
        return self.bank.head.finish(attended, entered.residual[None], delta)

    def _turn(self, positions: slice) -> Turn:
        return self.cos[positions], self.sin[positions]


def _stack(head: EagleHead, deltas: list[Delta | None]) -> Delta:
    """All members' deltas as one; a member without gets zeros and the common norm."""
    rank = max(d.rank for d in deltas if d is not None)
    stack = Delta(head.config, rank, len(deltas)).to(head.inv_freq.device)
    for name, parameter in stack.named_parameters():
        parameter.requires_grad_(False).zero_()
        for i, delta in enumerate(deltas):
            if delta is not None:
                own = delta.get_parameter(name)[0]
                parameter[i][tuple(slice(n) for n in own.shape)] = own
            elif name == "norm" and head.config.version == 3:
                parameter[i] = head.get_parameter("norm.weight")
    return stack.to(next(d for d in deltas if d is not None).norm.dtype)
