"""Hydra heads (arXiv 2402.05109), and the drafter of all heads that read one state of the target (Medusa's, too).

Head i drafts the token i + 2 behind the state; the one in between is the target's own. Here a round ends with just that
token: the newest state is the one before the last committed token, and head 0 drafts the first token after the text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from specdemo.drafters.eagle_head import Norm
from specdemo.drafters.head_configs import HydraConfig
from specdemo.drafters.law import Law
from specdemo.drafters.product import Product
from specdemo.drafters.tree import children, dynamic_tree
from specdemo.target import HFTarget
from specdemo.types import DraftContext, DrafterStart, Proposal, Rng, Rows, SpecdemoError, Target, Verified

# ------------------------------------------------------------------------------------------------------- the networks


class ResBlock(nn.Module):
    """x -> res(x) + SiLU(linear(x)); res is the identity where the size stays."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        nn.init.zeros_(self.linear.weight)  # as in both papers' code: training starts from (almost) the identity
        self.res_connection = nn.Linear(inputs, outputs) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        y: Tensor = self.res_connection(x) + F.silu(self.linear(x))
        return y


class DecoderLayer(nn.Module):
    """A Llama decoder layer; its keys and values are kept by whoever calls it."""

    def __init__(self, c: HydraConfig) -> None:
        super().__init__()
        size, inner = c.hidden_size, c.intermediate_size
        self.heads, self.kv_heads, self.theta = c.attention_heads, c.kv_heads, c.rope_theta
        self.head_dim = size // c.attention_heads
        outputs = {"q": size, "k": c.kv_heads * self.head_dim, "v": c.kv_heads * self.head_dim, "o": size}
        self.self_attn = nn.ModuleDict({f"{n}_proj": nn.Linear(size, out, bias=False) for n, out in outputs.items()})
        self.mlp = nn.ModuleDict({f"{n}_proj": nn.Linear(size, inner, bias=False) for n in ("gate", "up")})
        self.mlp["down_proj"] = nn.Linear(inner, size, bias=False)
        self.input_layernorm = Norm(size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(size, c.rms_norm_eps)

    def keys_values(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """[..., n, hidden] at positions [n] -> rotated keys, and values [..., kv heads, n, head size]."""
        x = self.input_layernorm(hidden)
        keys, values = (self._split(self.self_attn[f"{n}_proj"](x), self.kv_heads) for n in "kv")
        return rotate(keys, positions, self.theta), values

    def forward(self, hidden: Tensor, positions: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """[..., n, hidden] at positions [n] -> the same, seeing keys and values as far as ``mask`` [..., n, slots]."""
        queries = self._split(self.self_attn["q_proj"](self.input_layernorm(hidden)), self.heads)
        attended = attend(rotate(queries, positions, self.theta), keys, values, mask)
        x: Tensor = hidden + self.self_attn["o_proj"](attended.transpose(-3, -2).flatten(-2))
        normed = self.post_attention_layernorm(x)
        gated = F.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        y: Tensor = x + self.mlp["down_proj"](gated)
        return y

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.reshape(*x.shape[:-1], heads, self.head_dim).transpose(-3, -2)


class Prefix(nn.Module):
    """Hydra++'s prefix: a decoder layer of its own over the target's last hidden states, then a norm."""

    def __init__(self, c: HydraConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(c)])
        self.norm = Norm(c.hidden_size, c.rms_norm_eps)

    @property
    def layer(self) -> DecoderLayer:
        """The only layer."""
        layer = self.layers[0]
        assert isinstance(layer, DecoderLayer)
        return layer

    def forward(self, hidden: Tensor, positions: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """As :meth:`DecoderLayer.forward`, normed."""
        y: Tensor = self.norm(self.layer(hidden, positions, keys, values, mask))
        return y


class DraftHeads(nn.Module):
    """What Hydra's and Medusa's networks have in common.

    Attributes:
        num_heads: longest draft.
        prefix: what the target's hidden states go through first, None: nothing.
        own_lm_head: False: heads are read by (rows of) the target's LM head.
    """

    num_heads: int
    own_lm_head = True

    @property
    def prefix(self) -> Prefix | None:
        """See the class."""
        return None

    def read(self, head: int, state: Tensor, path: Tensor) -> Tensor:
        """What the LM head reads.

        Args:
            state: [..., hidden]. ``path``: [..., head + 1, hidden] embeddings of the tokens behind the state.

        Returns:
            [..., hidden].
        """
        raise NotImplementedError

    def logits(self, head: int, read: Tensor, lm_head: Product | None = None) -> Tensor:
        """[..., hidden] of :meth:`read` -> [..., draft vocabulary]; ``lm_head``: rows of the target's, where the
        network has none."""
        raise NotImplementedError

    def forward(self, hidden: Tensor, embedded: Tensor, mask: Tensor | None = None) -> list[Tensor]:
        """Whole texts at once, teacher-forced: what heads are trained on.

        Args:
            hidden: [..., t, hidden] the target's last hidden state at each token.
            embedded: [..., t, hidden] the target's embeddings of the tokens.
            mask: [..., t, t] which tokens each token's prefix sees, None: itself and all before it.

        Returns:
            of each head what the LM head reads, [..., t - 1 - i, hidden] for head i: index p drafts token p + i + 2
            from the state at token p and the tokens p + 1 to p + i + 1. Heads that the text is too short for are left
            out.
        """
        length = hidden.shape[-2]
        states = hidden
        if self.prefix is not None:
            positions = torch.arange(length, device=hidden.device)
            mask = positions[:, None] >= positions if mask is None else mask
            states = self.prefix(hidden, positions, *self.prefix.layer.keys_values(hidden, positions), mask)
        reads = []
        for head in range(min(self.num_heads, length - 1)):
            n = length - 1 - head
            path = torch.stack([embedded[..., 1 + j : 1 + j + n, :] for j in range(head + 1)], -2)
            reads.append(self.read(head, states[..., :n, :], path))
        return reads


class HydraHeads(DraftHeads):
    """Hydra's network; names of parameters are those of published "prefix-mlp" files (formats.py), tied blocks once.

    Args:
        own_lm_head: False: the target's LM head reads the heads; then the file has no ``hydra_lm_head``.
        norm: heads are normed before they are read (``hydra_norm.i``), as the target's LM head expects it.
    """

    def __init__(self, config: HydraConfig, *, own_lm_head: bool = True, norm: bool = False) -> None:
        super().__init__()
        self.config, self.num_heads, self.own_lm_head = config, config.num_heads, own_lm_head
        size, heads = config.hidden_size, range(config.num_heads)
        if config.prefix:
            self.prefix_embeding_layer = Prefix(config)  # spelled like this in the files
        self.hydra_mlp = nn.ModuleList(nn.ModuleDict({"1": ResBlock((i + 2) * size, size)}) for i in heads)
        if config.num_layers > 1:
            for blocks in self._blocks():
                blocks["3"] = ResBlock(size, size)
        if own_lm_head:
            self.hydra_lm_head = nn.ModuleList(nn.ModuleDict({"1": nn.Linear(size, config.vocab_size)}) for _ in heads)
        if norm:
            self.hydra_norm = nn.ModuleList(Norm(size, config.rms_norm_eps or 1e-5) for _ in heads)

    @property
    def prefix(self) -> Prefix | None:
        """The prefix layer, if there is one."""
        return self.prefix_embeding_layer if self.config.prefix else None

    def read(self, head: int, state: Tensor, path: Tensor) -> Tensor:
        """See :meth:`DraftHeads.read`: concatenation, then residual blocks, all but the first of them the same one."""
        blocks = self._blocks()[head]
        x: Tensor = blocks["1"](torch.cat([state, path.flatten(-2)], -1))
        for _ in range(self.config.num_layers - 1):
            x = blocks["3"](x)
        return self.hydra_norm[head](x) if hasattr(self, "hydra_norm") else x

    def logits(self, head: int, read: Tensor, lm_head: Product | None = None) -> Tensor:
        """See :meth:`DraftHeads.logits`."""
        if not self.own_lm_head:
            assert lm_head is not None
            return lm_head(read)
        own = self.hydra_lm_head[head]
        assert isinstance(own, nn.ModuleDict)
        logits: Tensor = own["1"](read)
        return logits

    def _blocks(self) -> list[nn.ModuleDict]:
        return [blocks for blocks in self.hydra_mlp if isinstance(blocks, nn.ModuleDict)]


def rotate(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """Rotary position embedding of [..., n, head size] at positions [n]; angles in float32 or wider."""
    half = x.shape[-1] // 2
    wide = torch.promote_types(x.dtype, torch.float32)
    steps = torch.arange(half, device=x.device, dtype=wide) / half
    angles = positions.to(wide)[:, None] * theta**-steps
    cos, sin = (torch.cat([f, f], -1).to(x.dtype) for f in (angles.cos(), angles.sin()))
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention of [..., heads, n, size] over [..., kv heads, slots, size]; mask [..., n, slots]."""
    *batch, heads, _, size = queries.shape
    groups = keys.shape[-3]
    folded = queries.reshape(*batch, groups, -1, size)  # a group's queries as rows: keys and values are not copied
    if mask is not None:
        mask = torch.cat([mask] * (heads // groups), -2).unsqueeze(-3)
    return F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(queries.shape)


# ------------------------------------------------------------------------------------------------------- the drafter


class HeadBank:
    """What all runs share: a network, and what it takes from the target.

    Attributes:
        embedding: [V, hidden] the target's.
        vocab: [draft vocabulary] target ids of the columns of the logits, None: all, in order.
        lm_head: rows of the target's, None: the network has its own.
    """

    def __init__(self, target: HFTarget, heads: DraftHeads, vocab: Tensor | None = None) -> None:
        self.target, self.layer = target, last_layer(target)
        target.read_layers((self.layer,))
        self.heads = heads.to(device=target.device, dtype=target.dtype).eval().requires_grad_(False)
        self.vocab = None if vocab is None else vocab.to(target.device)
        self.embedding: Tensor = target.model.get_input_embeddings().weight
        self.lm_head: Product | None = None
        if not heads.own_lm_head:
            self.lm_head = Product(target.lm_head if self.vocab is None else target.lm_head[self.vocab])

    def start(self, nodes: int = 0) -> DrafterStart:
        """A drafter of chains, or of dynamic trees of ``nodes`` tokens. Those of one run share what they have read."""
        if nodes < 0:
            raise SpecdemoError(f"nodes is {nodes}; the size of a tree is at least 1 (0 drafts chains).")
        return lambda context: HeadDrafter(self, nodes, context)


class HeadRun:
    """The committed text of one run as a bank's heads see it: slot i holds the target's state at token i."""

    def __init__(self, bank: HeadBank, slots: int) -> None:
        self.bank, like = bank, bank.embedding
        self.columns = bank.target.layer_columns((bank.layer,))  # not before all drafters have said what they read
        self.hidden = like.new_zeros(slots, len(self.columns))
        self.positions = torch.arange(slots, device=like.device)
        self.text = 0  # tokens read; states are one fewer
        self.length = 0
        self._states: Tensor | None = None  # what the heads read, of the latest slots
        if bank.heads.prefix is not None:
            layer = bank.heads.prefix.layer
            self.keys = like.new_zeros(layer.kv_heads, slots, layer.head_dim)
            self.values = torch.zeros_like(self.keys)

    def read(self, seen: int, verified: Verified) -> None:
        """Add committed tokens, the first of which is token number ``seen`` of the text; what is known is skipped."""
        new = len(verified.tokens) - (self.text - seen)
        if new <= 0:
            return
        assert verified.features is not None
        features = verified.features[-new:]
        if self.text == 0:  # nothing comes before the first token
            features = features[1:]
        here = slice(self.length, self.length + len(features))
        self.text, self.length, self._states = self.text + new, here.stop, None
        self.hidden[here] = features[:, self.columns].to(self.hidden.dtype)
        prefix = self.bank.heads.prefix
        if prefix is not None:
            pair = prefix.layer.keys_values(self.hidden[here], self.positions[here])
            self.keys[:, here], self.values[:, here] = pair

    def states(self, n: int) -> Tensor:
        """[n, hidden] what heads read of the last n states; computed once for all drafters of the run."""
        here, prefix = slice(self.length - n, self.length), self.bank.heads.prefix
        if prefix is None:
            return self.hidden[here]
        if self._states is None or len(self._states) < n:
            keys, values = self.keys[:, : self.length], self.values[:, : self.length]
            mask = self.positions[here, None] >= self.positions[: self.length] if n > 1 else None
            self._states = prefix(self.hidden[here], self.positions[here], keys, values, mask)
        return self._states[-n:]

    def logits(self, head: int, states: Tensor, path: Tensor) -> Tensor:
        """[n, hidden] states and the tokens [n, head + 1] behind them -> [n, draft vocabulary]."""
        bank = self.bank
        read = bank.heads.read(head, states, F.embedding(path, bank.embedding))
        return bank.heads.logits(head, read, bank.lm_head)


class HeadDrafter:
    """One run of a bank's heads. ``nodes``: size of its dynamic trees, 0: it drafts chains."""

    def __init__(self, bank: HeadBank, nodes: int, context: DraftContext) -> None:
        if bank not in context.shared:
            context.shared[bank] = HeadRun(bank, context.capacity)
        self.run: HeadRun = context.shared[bank]
        self.bank, self.nodes = bank, nodes
        self.law = Law(context.transform, bank.target.vocab_size)
        self.text: list[int] = []
        self.ahead: Tensor | None = None  # [1, hidden] the newest state: that before the last token of the text

    @torch.no_grad()
    def catch_up(self, verified: Verified) -> Rows | None:
        """Read committed tokens. Teacher-forced, head 0 would have drafted each of them, from the state two before."""
        before, start, n = self.ahead, len(self.text), len(verified.tokens)
        self.run.read(start, verified)
        self.text += verified.tokens
        if verified.probs is None or before is None:
            self.ahead = self.run.states(1) if self.run.length else None
            return None if verified.probs is None else Rows(tokens=(-1,) * n)  # nothing to start from
        states = self.run.states(n)
        self.ahead = states[-1:]
        last = self._tokens(self.text[start - 1 : -1])[:, None]
        logits = self.run.logits(0, torch.cat([before, states[:-1]]), last)
        if self.nodes:
            return Rows(children=children(self.nodes, logits, self.bank.vocab))
        contexts = (self.text[: start + i] for i in range(n))
        return self.law.rows(logits, self.bank.vocab, contexts)

    @torch.no_grad()
    def propose(self, k: int, rng: Rng) -> Proposal:
        """Draft a chain of ``k`` tokens, one per head, or a tree of that depth; never deeper than there are heads, and
        nothing while the text is a single token, which has no state before it."""
        k = min(k, self.bank.heads.num_heads)
        if self.ahead is None or k < 1:
            return Proposal(())
        states, path = self.ahead, self._tokens(self.text[-1:])[None]
        first = self.run.logits(0, states, path)

        def expand(level: int, tokens: Tensor, parents: Tensor) -> Tensor:
            nonlocal path
            path = torch.cat([path[parents], tokens[:, None]], 1)
            return self.run.logits(level + 1, states.expand(len(path), -1), path)

        if self.nodes:
            return dynamic_tree(k, self.nodes, first, expand, self.bank.vocab)
        root = torch.zeros(1, dtype=torch.long, device=states.device)
        step = lambda i, token: expand(i, self._tokens([token]), root)  # noqa: E731
        return self.law.chain(k, self.text, first, step, self.bank.vocab, rng)

    def observe(self, verified: Verified) -> None:
        """Nothing to learn."""

    def _tokens(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, device=self.run.positions.device)


# ------------------------------------------------------------------------------------------------------------ loading


def last_layer(target: HFTarget) -> int:
    """Number of the target's last hidden state, the one its LM head reads."""
    return int(target.model.config.get_text_config().num_hidden_layers)


def hf_target(target: Target, family: str) -> HFTarget:
    """The target, if its hidden states can be read.

    Raises:
        SpecdemoError: they cannot.
    """
    if not isinstance(target, HFTarget):
        raise SpecdemoError(f"{family} drafts only for targets loaded through transformers.")
    return target


def filled(heads: DraftHeads, weights: dict[str, Tensor]) -> DraftHeads:
    """A network made without memory, with the tensors of a file as its parameters; every name must fit."""
    heads.load_state_dict(weights, strict=True, assign=True)
    return heads


def load(target: Target, *, model: str, nodes: int = 0) -> DrafterStart:
    """Hydra heads: several tokens from one hidden state of the target, each head reading the tokens before it.

    Args:
        model: a folder or a Hub repository.
        nodes: size of the trees it drafts; 0: chains.

    Raises:
        SpecdemoError: the heads cannot be loaded, or were made for another target.
    """
    from specdemo.drafters.bank_files import check_size, is_hydra, read_hydra_heads
    from specdemo.drafters.formats import check_vocabulary, fetch, read_hydra

    target = hf_target(target, "hydra")
    folder = fetch(model)
    if is_hydra(folder):
        own, vocab = read_hydra_heads(folder, target.tokenizer.hf, target.vocab_size)
        check_size(folder, own.config.hidden_size, target)
        return HeadBank(target, own, vocab).start(nodes)
    check_vocabulary(target.tokenizer.hf, folder)
    config: Any = target.model.config.get_text_config()
    read = read_hydra(folder, config.hidden_size, target.vocab_size, config.to_dict())
    with torch.device("meta"):
        heads = HydraHeads(read.config)
    return HeadBank(target, filled(heads, read.weights)).start(nodes)
