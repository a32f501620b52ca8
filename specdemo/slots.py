"""Keys and values in numbered slots: the write position is an input of the forward, never a state of the cache.

A block of rows writes its keys and values into the slots it is given; what was rejected is overwritten by the next
block. So there is no rollback to get wrong, and compiled code has no counter to lose. Every row says by an explicit
mask which slots it sees, which covers trees, sliding windows and mixtures of layer types alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedConfig
from transformers.cache_utils import Cache

QUERIES = 8  # rows of a product with fewer rows come from another kernel, whose sums are rounded differently
ATTENTION = "specdemo_slots"
"""Name under which :func:`slot_attention` is registered with transformers."""

Shape = tuple[int, ...]
Mask = Tensor | dict[str, Tensor]


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values [1, heads, slots, size] of every layer, as one forward sees them.

    Attributes:
        slots: [rows] where the forward's rows are written.
        layout: [rows, slots] for every row, which slot it sees at which position (a tree's path laid out as a chain, so
            that it is added up in the same order and gives the same bits); None: all rows see the slots as they are.
    """

    def __init__(self, keys: list[Tensor], values: list[Tensor], slots: Tensor, layout: Tensor | None = None) -> None:
        self.layers: list[Any] = []
        self.layer_class_to_replicate = None
        self.offloading = False
        self.keys, self.values, self.slots, self.layout = keys, values, slots, layout

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows' keys and values, return all slots'. Called by the model, once per layer."""
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys.index_copy_(2, self.slots, key_states)
        values.index_copy_(2, self.slots, value_states)
        if self.layout is None:
            return keys, values
        return keys[0][:, self.layout].transpose(0, 1), values[0][:, self.layout].transpose(0, 1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are inputs, too."""
        return 0


class ShapeProbe(SlotCache):
    """Learns the [heads, size] of each layer's keys and values from one forward without a past."""

    def __init__(self) -> None:
        super().__init__([], [], torch.empty(0))
        self.shapes: list[tuple[Shape, Shape]] = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Note the shapes; the rows see only one another."""
        if layer_idx != len(self.shapes):
            raise NotImplementedError(f"layer {layer_idx} shares or skips its keys and values")
        self.shapes.append(((key_states.shape[1], key_states.shape[3]), (value_states.shape[1], value_states.shape[3])))
        return key_states, value_states


def slot_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of [1, heads, rows, size] queries over all slots under an additive mask [1, 1, rows, slots].

    Keys come once for all rows, or once per row (see ``SlotCache.layout``): then rows become a batch.
    Query heads that share a key head become rows of it (grouped-query attention without copying keys), padded to a
    multiple of ``QUERIES``, so that a row gives the same bits at every place of a block and alone.
    ``softcap`` as in Gemma 2, ``s_aux`` (a sink per head) as in GPT-OSS.
    """
    laid_out = key.shape[0] > 1
    if laid_out:
        query, attention_mask = query.transpose(0, 2), attention_mask.transpose(0, 2)
    batch, heads, rows, size = query.shape
    group = heads // key.shape[1]
    padding = (0, 0, 0, -(group * rows) % QUERIES)
    query = F.pad(query.reshape(batch, key.shape[1], group * rows, size), padding)
    mask = F.pad(attention_mask.repeat(1, 1, group, 1), padding)
    if softcap is None and s_aux is None:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    else:
        scores = query @ key.transpose(2, 3) * (size**-0.5 if scaling is None else scaling)
        scores = (scores if softcap is None else torch.tanh(scores / softcap) * softcap) + mask
        if s_aux is not None:
            sink = F.pad(s_aux.reshape(1, key.shape[1], group, 1).repeat_interleave(rows, dim=2), padding)
            scores = torch.cat([scores, sink.expand(batch, -1, -1, -1).to(scores.dtype)], dim=-1)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
        out = weights[..., : key.shape[2]] @ value
    out = out[:, :, : group * rows].reshape(batch, heads, rows, -1)
    return (out.transpose(0, 2) if laid_out else out).transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, slot_attention)


def layer_kinds(config: PreTrainedConfig) -> tuple[str, ...] | None:
    """Kinds of layers that expect a mask each ("full_attention" ...); None where one mask is for all layers."""
    kinds = getattr(config.get_text_config(), "layer_types", None)
    return tuple(sorted(set(kinds))) if kinds else None


def sliding_window(config: PreTrainedConfig) -> int | None:
    """How many tokens back a sliding layer sees, itself included."""
    window = getattr(config.get_text_config(), "sliding_window", None)
    return int(window) if window else None


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """[rows, slots] booleans -> [1, 1, rows, slots] zeros and lowest numbers (finite: a row of -inf would be NaN)."""
    lowest = torch.finfo(dtype).min
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, lowest)[None, None]


def masks(allowed: Tensor, near: Tensor, kinds: Iterable[str] | None, windowed: bool, dtype: torch.dtype) -> Mask:
    """The mask or masks a model expects.

    Args:
        allowed: [rows, slots] what a row sees at any distance; near: those inside the sliding window.
        kinds: see :func:`layer_kinds`. ``windowed``: all layers slide where there are no kinds.
        dtype: the model's.
    """
    if kinds is None:
        return additive(near if windowed else allowed, dtype)
    return {kind: additive(near if kind == "sliding_attention" else allowed, dtype) for kind in kinds}


class Block(NamedTuple):
    """How the rows of a block hang together. Row 0 is the last committed token, row i + 1 is draft token i, the rest
    is padding, which stands beside row 0.

    Attributes:
        depth: [rows] tokens between each row and row 0.
        sees: [rows, rows] the rows on each row's path, itself included.
        ancestor: [rows, rows] the row at each depth of each row's path; deeper entries are of no meaning, but valid.
    """

    depth: Tensor
    sees: Tensor
    ancestor: Tensor


@lru_cache(maxsize=256)
def block(parents: tuple[int, ...], rows: int, device: torch.device) -> Block:
    """The block of a draft with these ``parents`` (see Proposal). Kept, because most drafters repeat few shapes."""
    depth = [0] * rows
    paths = [[row] for row in range(rows)]
    for row, parent in enumerate(parents, start=1):
        depth[row] = depth[parent + 1] + 1
        paths[row] = [*paths[parent + 1], row]
    sees = torch.zeros(rows, rows, dtype=torch.bool)
    for row, path in enumerate(paths):
        sees[row, path] = True
    ancestor = torch.tensor([path + [0] * (rows - len(path)) for path in paths])
    return Block(torch.tensor(depth, device=device), sees.to(device), ancestor.to(device))


def is_chain(parents: tuple[int, ...]) -> bool:
    """Whether each token hangs on the one before it."""
    return parents == tuple(range(-1, len(parents) - 1))


def difference(expected: Tensor, got: Tensor) -> float:
    """Median over rows of the relative distance of logits, each row centred (a common shift means nothing)."""
    expected, got = (logits - logits.mean(-1, keepdim=True) for logits in (expected, got))
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-9)).median())


def tolerance(dtype: torch.dtype) -> float:
    """Largest :func:`difference` that rounding explains (measured 0.03 to 0.07 in bfloat16; a wrong mask gives 1)."""
    return 0.25 if dtype in (torch.bfloat16, torch.float16) else 1e-3
