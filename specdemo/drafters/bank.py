"""Heads of one architecture that run together: one key-value cache, one batch (EAGLE heads and their low-rank deltas).

What a member of a bank may change lies behind its keys and values, so the cache of committed text is everybody's:
switching from one member to another costs nothing, and one batched forward tells what each of them would have drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdemo.drafters.eagle_head import Delta, EagleHead, attend
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
        self._stack: Delta | None = None
        self._union: tuple[Tensor, list[Tensor]] | None = None

    def join(self, member: Member) -> int:
        """Add a member, before the first run; returns its number (that of the member of this name, if there is one)."""
        names = [m.name for m in self.members]
        if member.name in names:
            return names.index(member.name)
        self.members.append(member)
        self._stack = self._union = None
        return len(self.members) - 1

    @property
    def stack(self) -> Delta | None:
        """All members' deltas as one; None where none has any, or where there is nothing to stack."""
        if self._stack is None and len(self.members) > 1 and any(m.delta is not None for m in self.members):
            self._stack = _stack(self.head, [m.delta for m in self.members])
        return self._stack

    @property
    def union(self) -> tuple[Tensor, list[Tensor]] | None:
        """Rows [union, hidden] of the target's LM head that any member has, and each member's columns among them; None
        where members have LM heads of their own. One product with all rows costs less than one per member, because
        reading the rows is what costs."""
        vocabularies = [m.vocab for m in self.members if m.vocab is not None]
        if self._union is None and self.rows is not None and len(vocabularies) == len(self.members):
            ids = torch.unique(torch.cat(vocabularies))
            self._union = self.rows[ids].contiguous(), [torch.searchsorted(ids, vocab) for vocab in vocabularies]
        return self._union

    def start(self, capacity: int, room: int) -> BankRun:
        """A run of at most ``capacity`` committed tokens and ``room`` drafted ones."""
        return BankRun(self, capacity + room)


class BankRun:
    """The committed text of one run as the bank's heads see it.

    Slot i of keys and values is the pair (features of token i, embedding of token i + 1); drafts lie behind ``length``
    and are simply overwritten.
    """

    def __init__(self, bank: Bank, slots: int) -> None:
        self.bank = bank
        c, like = bank.head.config, bank.embedding
        self.keys = like.new_zeros(c.num_kv_heads, slots, c.head_dim)
        self.values = torch.zeros_like(self.keys)
        self.mixed = like.new_zeros(slots, bank.head.width)  # what members start from
        self.residual = like.new_zeros(slots, c.hidden_size)
        self.positions = torch.arange(slots, device=like.device)
        self.columns = bank.columns()
        self.text = 0  # tokens read; pairs are one fewer
        self.length = 0
        self.extra = _Extra(bank)
        self._outputs: Tensor | None = None  # of the latest pairs, all members
        self._logits: Tensor | None = None  # likewise, over the union of vocabularies

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
        self.extra.add(tokens, self.text)
        self.text += len(tokens)
        here = slice(self.length, self.length + len(ids))
        head, self.length = self.bank.head, here.stop
        self._outputs = self._logits = None
        state = head.fuse(features[:, self.columns].to(self.keys.dtype))
        self.mixed[here], self.residual[here] = head.mix(F.embedding(ids, self.bank.embedding), state)
        self.keys[:, here], self.values[:, here] = head.keys_values(self.mixed[here], self.positions[here])

    def outputs(self, member: int, n: int) -> Tensor:
        """[n, hidden] raw outputs of a member for the last n pairs; computed for all members at once, and not again for
        one that asks for fewer (because it has read some of them before)."""
        stack = self.bank.stack
        if stack is None:
            return self._run(n, self.bank.members[member].delta)[0]
        if self._outputs is None or self._outputs.shape[1] < n:
            self._outputs, self._logits = self._run(n, stack), None
        return self._outputs[member][-n:]

    def own_logits(self, member: int, outputs: Tensor) -> Tensor:
        """[n, hidden] raw outputs -> [n, draft vocabulary] logits of a member alone, without extra tokens."""
        m = self.bank.members[member]
        return F.linear(self.bank.head.readout(outputs[None], m.delta)[0], m.lm_head)

    def latest_logits(self, member: int, n: int) -> Tensor:
        """The same for its outputs of the last n pairs; computed for all members at once."""
        outputs, union = self.outputs(member, n), self.bank.union
        if self._outputs is None or union is None:
            return self.own_logits(member, outputs)
        rows, columns = union
        if self._logits is None:
            self._logits = F.linear(self.bank.head.readout(self._outputs, self.bank.stack), rows)
        return self._logits[member][-n:, columns[member]]

    def last(self, member: int) -> Tensor:
        """[1, hidden] raw output of a member alone for the last pair."""
        return self._run(1, self.bank.members[member].delta)[0]

    def extend(
        self, member: int, tokens: Tensor, states: Tensor, at: int, depth: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Outputs [n, hidden] of a member for drafted pairs.

        Args:
            tokens: [n] drafted; ``states``: [n, hidden] what the step before fed back.
            at: how many drafted slots are in use. ``depth``: [n] drafted tokens above each of these on its path.
            mask: [n, at + n] which drafted slots each sees; None: all.
        """
        bank, delta = self.bank, self.bank.members[member].delta
        positions, end = self.length + depth, self.length + at + len(tokens)
        mixed, residual = bank.head.mix(F.embedding(tokens, bank.embedding), states)
        here = slice(self.length + at, end)
        self.keys[:, here], self.values[:, here] = bank.head.keys_values(mixed, positions)
        queries = bank.head.queries(mixed[None], positions, delta)
        if mask is not None:
            mask = F.pad(mask, (self.length, 0), value=True)
        attended = attend(queries, self.keys[:, :end], self.values[:, :end], mask)
        return bank.head.finish(attended, residual[None], delta)[0]

    def logits(self, member: int, outputs: Tensor, known: int) -> Tensor:
        """[n, hidden] raw outputs -> [n, draft vocabulary + extra] logits. ``known``: see :class:`_Extra`."""
        return self.widened(member, outputs, self.own_logits(member, outputs), known)

    def widened(self, member: int, outputs: Tensor, logits: Tensor, known: int) -> Tensor:
        """[n, draft vocabulary] logits of these outputs -> with those of the extra tokens behind them."""
        if not known:
            return logits
        states = self.bank.head.readout(outputs[None], self.bank.members[member].delta)[0]
        return torch.cat([logits, *self.extra.logits(member, states, known)], -1)

    def at(self, member: int, outputs: Tensor, logits: Tensor, start: int) -> Tensor:
        """The same at the positions ``start``, ``start`` + 1, ... of the text, however late it is asked: a token that a
        position is yet to bring, or that came after it, is impossible there."""
        widened = self.widened(member, outputs, logits, self.extra.known)
        unknown = self.extra.unknown(member, range(start, start + len(logits)))
        if unknown is not None:
            widened[:, logits.shape[1] :].masked_fill_(unknown, float("-inf"))
        return widened

    def vocab(self, member: int, known: int) -> Tensor | None:
        """[draft vocabulary + extra] target ids of the logits' columns."""
        own = self.bank.members[member].vocab
        return None if own is None else torch.cat([own, *self.extra.ids(member, known)])

    def state(self, member: int, outputs: Tensor) -> Tensor:
        """[n, hidden] what a member's raw outputs feed back into its next step."""
        return self.bank.head.feed_back(outputs[None], self.bank.members[member].delta)[0]

    def _run(self, n: int, delta: Delta | None) -> Tensor:
        """[members of the delta, n, hidden] outputs for the last n committed pairs."""
        here = slice(self.length - n, self.length)
        queries = self.bank.head.queries(self.mixed[None, here], self.positions[here], delta)
        mask = self.positions[here, None] >= self.positions[: self.length] if n > 1 else None
        attended = attend(queries, self.keys[:, : self.length], self.values[:, : self.length], mask)
        return self.bank.head.finish(attended, self.residual[None, here], delta)


class _Extra:
    """Tokens of the text that a member's vocabulary lacks, and their rows of the target's LM head.

    ``known`` counts the first so many of them: what was known when a draft was, or would have been, made.
    """

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.known = 0
        self._ids: list[int] = []
        self._born: list[int] = []  # position of their first occurrence
        if bank.rows is None:
            return
        self._column: dict[int, int] = {}
        self._kept: list[list[int]] = [[] for _ in bank.members]  # columns that are new to a member
        self._inside = [_inside(member.vocab, len(bank.rows)) for member in bank.members]
        self._rows = bank.rows.new_empty(0, bank.rows.shape[1])

    def add(self, tokens: tuple[int, ...], at: int) -> None:
        """The text has grown by these tokens, the first of which is at position ``at``."""
        if self.bank.rows is None:
            return
        first = {token: at + i for i, token in reversed(list(enumerate(tokens)))}
        new = [t for t in dict.fromkeys(tokens) if t not in self._column and not all(i[t] for i in self._inside)]
        self._born += [first[token] for token in new]
        for token in new:
            self._column[token] = len(self._ids)
            for kept, inside in zip(self._kept, self._inside, strict=True):
                if not inside[token]:
                    kept.append(len(self._ids))
            self._ids.append(token)
        if new:
            self._rows = torch.cat([self._rows, self.bank.rows[new]])
        self.known = len(self._ids)

    def ids(self, member: int, known: int) -> list[Tensor]:
        """Target ids of a member's extra columns, as a list of one tensor, or of none."""
        kept = self._columns(member, known)
        return [torch.tensor([self._ids[i] for i in kept], device=self._rows.device)] if kept else []

    def logits(self, member: int, states: Tensor, known: int) -> list[Tensor]:
        """[n, extra] logits of them, likewise."""
        kept = self._columns(member, known)
        return [F.linear(states, self._rows[kept])] if kept else []

    def unknown(self, member: int, positions: Sequence[int]) -> Tensor | None:
        """[positions, extra] which of all extra tokens have not occurred before each position; None: there are none."""
        columns = self._columns(member, self.known)
        if not columns:
            return None
        born = torch.tensor([self._born[i] for i in columns], device=self._rows.device)
        return born >= torch.tensor(list(positions), device=born.device)[:, None]

    def _columns(self, member: int, known: int) -> list[int]:
        return [i for i in self._kept[member] if i < known] if self.bank.rows is not None else []


def _inside(vocab: Tensor | None, size: int) -> list[bool]:
    """Which target ids a vocabulary has."""
    if vocab is None:
        return [True] * size
    inside = torch.zeros(size, dtype=torch.bool)
    inside[vocab.cpu()] = True
    return inside.tolist()


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
