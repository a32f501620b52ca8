"""The network of EAGLE heads: one decoder layer over the target's hidden states and the next token's embedding.

EAGLE-1/2 (arXiv 2401.15077, 2406.16858) and EAGLE-3 (arXiv 2503.01840) differ in what enters the layer. Position i of a
head stands for the pair (features of token i, embedding of token i + 1) and predicts token i + 2.

Several heads may differ only in low-rank deltas behind their keys and values (queries, attention output, MLP, final
norm) and in their vocabulary. Such members of a *bank* share one key-value cache and run as one batch: tensors below
have a leading axis of members, of size 1 where all members are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdemo.drafters.product import Product

DELTAS = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # what a member may change
ATTENTION = ("q_proj", "k_proj", "v_proj")
Turn = tuple[Tensor, Tensor]  # cosines and sines [n, head size] of n positions


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shape of a head, and the switches in which published heads differ.

    Attributes:
        version: 3, or 1 (EAGLE-2 is EAGLE-1 with another way of drafting).
        target_size: hidden size of the target. ``layers``: the target's hidden states the head reads, counted as in
            :class:`specdemo.types.Target`; a version 1 head reads the last one.
        vocab_size: the target's vocabulary. ``draft_vocab_size``: rows of the LM head, None: no LM head of its own, it
            takes rows of the target's.
        fc_bias: EAGLE-1's ``bias``. ``attention_bias``: q, k and v have one (Qwen 2).
        fc_norm: each hidden state is normed before ``fc``. ``input_norm``: all of them together (norm_before_fc).
        norm_before_residual: the residual is the normed hidden state (speculators), else the raw one.
        mixed_residual: the residual is a linear map of all that the attention reads (version 1's, ours for version 3:
            without it the next token's embedding reaches the output only through the attention's few values).
        norm_output: what is fed back into the next step is the normed output, else the raw one.
        qk_norm: queries and keys are normed per head (Qwen 3).
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    target_size: int
    layers: tuple[int, ...]
    vocab_size: int
    draft_vocab_size: int | None = None
    version: int = 3
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_factor: float = 1.0
    fc_bias: bool = False
    attention_bias: bool = False
    fc_norm: bool = False
    input_norm: bool = False
    norm_before_residual: bool = False
    mixed_residual: bool = False
    norm_output: bool = False
    qk_norm: bool = False


@dataclass(frozen=True, slots=True)
class Entered:
    """What a head's layer starts from, the same for all members.

    Attributes:
        mixed: [..., n, mixed] what the attention reads. ``residual``: [..., n, hidden].
        queries: [..., n, heads x head size], neither changed by deltas nor rotated.
        keys, values: [..., kv heads, n, head size], keys rotated.
    """

    mixed: Tensor
    residual: Tensor
    queries: Tensor
    keys: Tensor
    values: Tensor


class Norm(nn.Module):
    """RMS norm with a gain, computed in float32 or wider (Llama's)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        """[..., size] -> the same; ``gain`` instead of the own weight."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return normed.to(x.dtype) * (self.weight if gain is None else gain).to(x.dtype)


class Delta(nn.Module):
    """Low-rank deltas of ``members`` heads: W_m = W + B_m A_m for the layers ``DELTAS``, and each one's final norm.

    B starts at zero, so that a new delta changes nothing.
    """

    def __init__(self, config: EagleConfig, rank: int, members: int = 1) -> None:
        super().__init__()
        self.rank, self.members = rank, members
        for name, (out, inner) in linear_sizes(config).items():
            if name in DELTAS:
                a = torch.randn(members, rank, inner) * inner**-0.5
                self.register_parameter(f"{name}_a", nn.Parameter(a))
                self.register_parameter(f"{name}_b", nn.Parameter(torch.zeros(members, out, rank)))
        self.norm = nn.Parameter(torch.ones(members, 1, config.hidden_size))

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """y [members or 1, n, out] plus what the deltas make of x [members or 1, n, in]."""
        a: Tensor = getattr(self, f"{name}_a")
        b: Tensor = getattr(self, f"{name}_b")
        return y + (x @ a.mT) @ b.mT

    def one(self, member: int) -> Delta:
        """The delta of a single member; shares memory."""
        single = Delta.__new__(Delta)
        nn.Module.__init__(single)
        single.rank, single.members = self.rank, 1
        for name, parameter in self.named_parameters():
            single.register_parameter(name, nn.Parameter(parameter[member : member + 1], requires_grad=False))
        return single


class EagleHead(nn.Module):
    """The weights all members of a bank have in common. Names are those of the published EAGLE-3 files."""

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = c = config
        self.products: dict[tuple[str, ...], Product] = {}  # see prepare
        self._sizes = sizes = linear_sizes(config)
        biased = {"q_proj", "k_proj", "v_proj"} if c.attention_bias else set()
        for name, (out, inner) in sizes.items():
            has_bias = name in biased or (name == "fc" and c.fc_bias)
            setattr(self, name, nn.Linear(inner, out, bias=has_bias))
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        if c.version == 3:
            self.input_layernorm, self.hidden_norm = (Norm(c.hidden_size, c.rms_norm_eps) for _ in range(2))
            self.norm = Norm(c.hidden_size, c.rms_norm_eps)
        if c.fc_norm:
            self.fc_norm = nn.ModuleList(Norm(c.target_size, c.rms_norm_eps) for _ in c.layers)
        if c.input_norm:
            self.input_norm = Norm(c.target_size * len(c.layers), c.rms_norm_eps)
        if c.qk_norm:
            self.q_norm, self.k_norm = (Norm(c.head_dim, c.rms_norm_eps) for _ in range(2))
        if c.draft_vocab_size is not None:
            self.lm_head = nn.Linear(c.hidden_size, c.draft_vocab_size, bias=False)
        half = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
        self.register_buffer("inv_freq", 1.0 / (c.rope_theta**half) / c.rope_factor, persistent=False)
        self.inv_freq: Tensor

    @property
    def width(self) -> int:
        """Size of what the attention reads."""
        return linear_sizes(self.config)["q_proj"][1]

    def fuse(self, features: Tensor) -> Tensor:
        """[..., layers x target size] hidden states of the target -> [..., hidden] what stands for them."""
        c = self.config
        if c.version == 1:
            return features
        if c.input_norm:
            features = self._own("input_norm", features)
        if c.fc_norm:
            parts = torch.split(features, c.target_size, -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        return self._linear(features, "fc")[0]

    def enter(self, embedding: Tensor, state: Tensor, turn: Turn) -> Entered:
        """Embeddings of the next tokens and states (fused features, or what the last step fed back), [..., n, hidden]
        each, at the positions of ``turn`` -> what the layer starts from."""
        c = self.config
        if c.version == 1:
            mixed = residual = self._linear(torch.cat([embedding, state], -1), "fc")[0]
            queries, keys, values = self._linear(mixed, *ATTENTION)
        else:
            normed = self._own("hidden_norm", state)
            mixed = torch.cat([self._own("input_layernorm", embedding), normed], -1)
            queries, keys, values, *more = self._linear(mixed, *self._entrance)
            residual = more[0] if more else normed if c.norm_before_residual else state
        keys, values = (self._heads(x, c.num_kv_heads) for x in (keys, values))
        if c.qk_norm:
            keys = self._own("k_norm", keys)
        return Entered(mixed, residual, queries, rotate(keys, turn), values)

    def queries(self, mixed: Tensor, common: Tensor, turn: Turn, delta: Delta | None) -> Tensor:
        """[members or 1, n, mixed] and the common queries of :class:`Entered` -> [members, heads, n, head size]."""
        q = self._heads(common if delta is None else delta.add("q_proj", mixed, common), self.config.num_heads)
        if self.config.qk_norm:
            q = self._own("q_norm", q)
        return rotate(q, turn)

    def finish(self, attended: Tensor, residual: Tensor, delta: Delta | None) -> Tensor:
        """[members, heads, n, head size], [members or 1, n, hidden] -> [members, n, hidden] the layer's raw output."""
        x = attended.transpose(-3, -2).flatten(-2)
        x = residual + self._changed(x, delta, "o_proj")[0]
        normed = self._own("post_attention_layernorm", x)
        gate, up = self._changed(normed, delta, "gate_proj", "up_proj")
        return x + self._changed(F.silu(gate) * up, delta, "down_proj")[0]

    def readout(self, output: Tensor, delta: Delta | None = None) -> Tensor:
        """[members, n, hidden] raw output -> what the LM head reads."""
        if self.config.version == 1:
            return output
        norm = self._modules["norm"]
        assert norm is not None
        read: Tensor = norm(output, None if delta is None else delta.norm)
        return read

    def feed_back(self, output: Tensor, delta: Delta | None = None) -> Tensor:
        """Raw output -> the state of the next step of a draft."""
        return self.readout(output, delta) if self.config.norm_output else output

    def turn(self, positions: Tensor) -> Turn:
        """Rotary position embedding of positions [n], in float32 or wider."""
        angles = positions.to(self.inv_freq.dtype)[:, None] * self.inv_freq
        cos, sin = (torch.cat([f, f], -1) for f in (angles.cos(), angles.sin()))
        return cos, sin

    def prepare(self) -> None:
        """Weights will not change any more: layers with the same input become one product, of which they are views."""
        self.requires_grad_(False)
        entrance = ATTENTION if self.config.version == 1 else self._entrance
        for names in (entrance, ("gate_proj", "up_proj"), ("fc",), ("o_proj",), ("down_proj",)):
            layers: list[nn.Linear] = [getattr(self, name) for name in names]
            weight, bias = torch.cat([layer.weight for layer in layers]), None
            if any(layer.bias is not None for layer in layers):
                bias = torch.cat([x.weight.new_zeros(x.out_features) if x.bias is None else x.bias for x in layers])
            for layer, own in zip(layers, torch.split(weight, [x.out_features for x in layers]), strict=True):
                layer.weight.data = own
            self.products[names] = Product(weight, bias)

    @property
    def _entrance(self) -> tuple[str, ...]:
        """Layers that read what enters a version 3 head."""
        return (*ATTENTION, "residual_proj") if self.config.mixed_residual else ATTENTION

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).transpose(-3, -2)

    def _changed(self, x: Tensor, delta: Delta | None, *names: str) -> Sequence[Tensor]:
        """The same with the members' deltas."""
        own = self._linear(x, *names)
        return own if delta is None else [delta.add(name, x, y) for name, y in zip(names, own, strict=True)]

    def _linear(self, x: Tensor, *names: str) -> Sequence[Tensor]:
        """Linear layers on one input: one product once weights are final."""
        if names not in self.products:
            return [self._own(name, x) for name in names]
        return torch.split(self.products[names](x), [self._sizes[name][0] for name in names], -1)

    def _own(self, name: str, x: Tensor) -> Tensor:
        y: Tensor = getattr(self, name)(x)
        return y


def rotate(x: Tensor, turn: Turn) -> Tensor:
    """Rotary position embedding of [..., n, head size]."""
    cos, sin = (t.to(x.dtype) for t in turn)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention of [members, heads, n, size] over keys and values [kv heads, slots, size].

    Args:
        mask: [n, slots] what each row sees; None: everything.
    """
    members, heads, rows, size = queries.shape
    group = heads // keys.shape[0]
    folded = queries.reshape(members, keys.shape[0], group * rows, size)
    if mask is not None:
        mask = mask.repeat(group, 1)
    out = F.scaled_dot_product_attention(
        folded, keys.expand(members, -1, -1, -1), values.expand(members, -1, -1, -1), attn_mask=mask
    )
    return out.reshape(members, heads, rows, -1)


def linear_sizes(c: EagleConfig) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of every linear layer but the LM head."""
    wide = 2 * c.hidden_size if c.version == 3 else c.hidden_size  # what the attention reads
    features = len(c.layers) * c.target_size if c.version == 3 else 2 * c.hidden_size
    residual = {"residual_proj": (c.hidden_size, wide)} if c.mixed_residual else {}
    return {
        **residual,
        "fc": (c.hidden_size, features),
        "q_proj": (c.num_heads * c.head_dim, wide),
        "k_proj": (c.num_kv_heads * c.head_dim, wide),
        "v_proj": (c.num_kv_heads * c.head_dim, wide),
        "o_proj": (c.hidden_size, c.num_heads * c.head_dim),
        "gate_proj": (c.intermediate_size, c.hidden_size),
        "up_proj": (c.intermediate_size, c.hidden_size),
        "down_proj": (c.hidden_size, c.intermediate_size),
    }
