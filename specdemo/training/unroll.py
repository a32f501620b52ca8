"""EAGLE-3's training-time test (arXiv 2503.01840 §3.2): a head is trained on its own outputs, as it will draft.

Index i of a row is the pair (features of token i, embedding of token i + 1). Step s drafts token i + 2 + s after the
true tokens up to i + 1 + s, but with the head's own states instead of the target's features from i + 1 on. Its
attention sees the true pairs up to i, then the head's own steps 1 .. s of this very chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from specdemo.drafters.eagle_head import Delta, EagleHead


@dataclass(frozen=True, slots=True)
class Rows:
    """A batch of rows cut from texts laid end to end.

    Attributes:
        tokens: [b, t]. ``document``: [b, t] number of the text a token belongs to.
        features: [b, t, layers x hidden] what the head reads.
        ids: [b, t, LAW] the target's most likely next tokens. ``law``: [b, t, LAW] their probabilities.
        weight: [b, t] how much it matters to draft the next token (0: not at all).
    """

    tokens: Tensor
    document: Tensor
    features: Tensor
    ids: Tensor
    law: Tensor
    weight: Tensor


def unroll(head: EagleHead, delta: Delta | None, rows: Rows, embedding: Tensor, steps: int) -> Iterator[Tensor]:
    """States that the LM head reads at steps 0 .. steps - 1: [b, t - 1 - s, hidden] each; index i drafts i + 2 + s."""
    length = rows.tokens.shape[1]
    positions = torch.arange(length + steps, device=rows.tokens.device)
    embedded = F.embedding(rows.tokens, embedding)
    state = head.fuse(rows.features)
    same = rows.document[:, :, None] == rows.document[:, None, :]
    mask = (same & (positions[:length, None] >= positions[None, :length]))[:, None]
    group = head.config.num_heads // head.config.num_kv_heads
    own: list[tuple[Tensor, Tensor]] = []  # keys and values of the steps
    for step in range(steps):
        n = length - 1 - step
        if n < 1:
            return
        turn = head.turn(positions[step : step + n])
        entered = head.enter(embedded[:, 1 + step :], state[:, :n], turn)
        own.append(_spread((entered.keys, entered.values), group))
        own = [(keys[..., :n, :], values[..., :n, :]) for keys, values in own]
        queries = head.queries(entered.mixed, entered.queries, turn, delta)
        attended = _attend(queries, own, mask[..., :n, :n])
        output = head.finish(attended, entered.residual, delta)
        yield head.readout(output, delta)
        state = head.feed_back(output, delta)


def _attend(queries: Tensor, own: list[tuple[Tensor, Tensor]], mask: Tensor) -> Tensor:
    """Row i sees the true pairs up to i and, one per later step, the chain's own (the diagonal)."""
    (keys, values), later = own[0], own[1:]
    scores = (queries @ keys.mT).masked_fill(~mask, float("-inf"))
    diagonal = [(queries * k).sum(-1, keepdim=True) for k, _ in later]
    wide = torch.promote_types(values.dtype, torch.float32)
    weights = torch.softmax(torch.cat([scores, *diagonal], -1).to(wide) * queries.shape[-1] ** -0.5, -1)
    weights = weights.to(values.dtype)
    out = weights[..., : keys.shape[-2]] @ values
    for i, (_, v) in enumerate(later):
        out = out + weights[..., keys.shape[-2] + i, None] * v
    return out


def _spread(pair: tuple[Tensor, Tensor], group: int) -> tuple[Tensor, Tensor]:
    """Key-value heads repeated for the query heads that share them."""
    keys, values = (x.repeat_interleave(group, -3) for x in pair)
    return keys, values
