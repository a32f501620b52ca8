"""What the columns of a bank's logits mean: which of them each member may draft, while the text brings new tokens.

Columns are the union of all members' vocabularies, then tokens of the text that nobody's vocabulary has, in the order
in which they came. A member may draft its own vocabulary and, where vocabularies grow, every token that came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor
from torch.nn import functional as F

from specdemo.drafters.product import Product

NEVER = float("-inf")


class Union:
    """The columns before the text has brought any; what all runs share.

    Args:
        vocabularies, lm_heads: of the members, [vocabulary] target ids and [vocabulary, hidden].
        rows: [V, hidden] of the target's LM head, from which new tokens take theirs; None: vocabularies do not grow.

    Attributes:
        ids: [union] target ids. ``product``: with their rows of the LM head; one product with all rows costs less than
            one per member, because reading the rows is what costs.
        own: of each member, [its vocabulary] columns in its own order.
        outside: [members, union] which columns are not in a member's vocabulary.
    """

    def __init__(self, vocabularies: Sequence[Tensor], lm_heads: Sequence[Tensor], rows: Tensor | None) -> None:
        self.rows = rows
        if len(vocabularies) == 1:
            self.ids, weight = vocabularies[0].long(), lm_heads[0]
            self.own = [torch.arange(len(self.ids), device=self.ids.device)]
        else:
            self.ids = torch.unique(torch.cat(list(vocabularies))).long()
            self.own = [torch.searchsorted(self.ids, vocabulary.long()) for vocabulary in vocabularies]
            weight = lm_heads[0].new_empty(len(self.ids), lm_heads[0].shape[1])
        self.outside = torch.ones(len(self.own), len(self.ids), dtype=torch.bool, device=self.ids.device)
        for member, (columns, lm_head) in enumerate(zip(self.own, lm_heads, strict=True)):
            self.outside[member, columns] = False
            if len(self.own) > 1:
                weight[columns] = lm_head
        self.product = Product(weight)
        self.column = {token: i for i, token in enumerate(self.ids.tolist())}
        self.common: list[bool] = (~self.outside.any(0)).tolist()


@dataclass(frozen=True, slots=True)
class Own:
    """What one member may draft from now on: its vocabulary, then what the text has brought.

    Attributes:
        columns: [n] of the bank's logits. ``ids``: [n] target ids.
        rows: [brought, hidden] of the LM head; None: the text has brought nothing.
    """

    columns: Tensor
    ids: Tensor
    rows: Tensor | None


class Columns:
    """The columns of one run.

    Attributes:
        ids: [columns] target ids.
    """

    def __init__(self, union: Union) -> None:
        self.union, self.ids, self.outside = union, union.ids, union.outside
        self._barred = torch.zeros(self.outside.shape, dtype=union.product.weight.dtype, device=self.ids.device)
        self._barred.masked_fill_(self.outside, NEVER)  # added to logits after the text
        self._rows = union.product.weight[:0]
        self._extra: dict[int, int] = {}  # tokens that are not in the union: their column
        self._born: dict[int, int] = {}  # columns new to some member: position of the token's first occurrence
        self._own: dict[int, tuple[int, Own]] = {}

    def read(self, tokens: Sequence[int], at: int) -> None:
        """The text has grown by these tokens, the first of which is at position ``at``."""
        union, known, born = self.union, len(self._extra), len(self._born)
        if union.rows is None:
            return
        for position, token in enumerate(tokens, at):
            column = union.column.get(token)
            if column is None:
                column = self._extra.setdefault(token, len(union.ids) + len(self._extra))
            elif union.common[column]:
                continue
            self._born.setdefault(column, position)
        if len(self._extra) > known:
            new = torch.tensor(list(self._extra)[known:], device=self.ids.device)
            self.ids, self._rows = torch.cat([self.ids, new]), torch.cat([self._rows, union.rows[new]])
            self.outside = F.pad(self.outside, (0, len(new)), value=True)
            self._barred = F.pad(self._barred, (0, len(new)))
        if len(self._born) > born:
            self._barred[:, list(self._born)[born:]] = 0

    def logits(self, states: Tensor, start: int) -> Tensor:
        """[members, n, hidden] that LM heads read -> [members, n, columns] logits of tokens at positions ``start``,
        ``start`` + 1, ... of the text, however late it is asked: what a member may not draft there is impossible, and
        so is a token that the position is yet to bring, or that came after it."""
        logits = self.union.product(states)
        if len(self._rows):
            logits = torch.cat([logits, F.linear(states, self._rows)], -1)
        if len(self._barred) > 1:
            logits = logits + self._barred[:, None]
        late = list(takewhile(lambda item: item[1] >= start, reversed(self._born.items())))
        if late:
            columns, born = torch.tensor(late, device=logits.device).T
            positions = torch.arange(start, start + logits.shape[1], device=logits.device)
            unknown = (born >= positions[:, None]) & self.outside[:, None, columns]
            logits[..., columns] = logits[..., columns].masked_fill(unknown, NEVER)
        return logits

    def own(self, member: int) -> Own:
        """What a member may draft after the text."""
        known, own = self._own.get(member, (-1, None))
        if own is None or known != len(self._born):
            born = torch.tensor(list(self._born), dtype=torch.long, device=self.ids.device)
            brought = born[self.outside[member, born]]
            columns, rows = torch.cat([self.union.own[member], brought]), self.union.rows
            own = Own(
                columns, self.ids[columns], rows[self.ids[brought]] if rows is not None and len(brought) else None
            )
            self._own[member] = len(self._born), own
        return own
