"""The target model: load, score, commit. The only importer of transformers models.

Every forward after the prompt goes through one padded number of rows, plain decoding included, so that the logits of a
position do not depend on how many tokens were drafted around it. Prompts are read the same way in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdemo.slots import (
    ATTENTION,
    Block,
    Mask,
    ShapeProbe,
    SlotCache,
    block,
    is_chain,
    layer_kinds,
    masks,
    sliding_window,
)
from specdemo.tokens import HFTokenizer
from specdemo.types import Proposal, SpecdemoError

ROWS = (6, 9, 17, 33, 65, 129)
PREFILL_ROWS = 512
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


def fixed_rows(longest_block: int) -> int:
    """Rows of every scoring forward of a run whose longest block (longest draft + 1) is given: few distinct shapes."""
    return next((rows for rows in ROWS if rows >= longest_block), longest_block)


def slot_count(needed: int) -> int:
    """Cache size for ``needed`` slots: 256, 512, 1024, 1536, 2048, 3072, 4096 ... so that shapes repeat."""
    size = 256
    while size < needed:
        size *= 2
    return size * 3 // 4 if size > 1024 and size * 3 // 4 >= needed else size


def auto_device() -> str:
    """The first CUDA device where there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def auto_dtype(device: str) -> str:
    """bfloat16 where the hardware multiplies it natively, else float32."""
    if torch.device(device).type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if native else "float32"


class HFTarget:
    """A transformers causal language model as :class:`specdemo.types.Target`.

    Attributes:
        model: the model itself; its attention is switched to :func:`specdemo.slots.slot_attention`.
        vocab_size: columns of the logits (may be larger than the tokenizer's vocabulary: padding).
        eos: every token that ends an answer. ``window``: most positions the model was made for.
        exact_trees: a tree's rows see their paths laid out as chains, which gives the bits of plain decoding and costs
            a copy of keys and values per row; False: tree masks, equal up to rounding. Chains are exact anyway.
    """

    exact_trees = True

    def __init__(self, model: Any, tokenizer: Any, *, name: str = "") -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = HFTokenizer(tokenizer)
        self.name = name or model.config.name_or_path or type(model).__name__
        self.device, self.dtype = model.device, model.dtype
        self.kinds, self.sliding = layer_kinds(model.config), sliding_window(model.config)
        self.eos = _eos(model, tokenizer)
        self.window = _window(model.config)
        self.shapes, self.vocab_size = _probe(self)

    @classmethod
    def load(
        cls, path_or_id: str, *, dtype: str = "auto", device: str = "auto", revision: str | None = None
    ) -> HFTarget:
        """Load a folder or a Hub repository.

        Args:
            path_or_id: what ``from_pretrained`` takes. ``revision``: branch, tag or commit of a Hub repository.
            dtype: "auto" or a key of ``DTYPES``. ``device``: "auto", "cpu", "cuda", "cuda:1" ...
        """
        device = auto_device() if device == "auto" else device
        dtype = auto_dtype(device) if dtype == "auto" else dtype
        if dtype not in DTYPES:
            raise SpecdemoError(f"dtype is {dtype!r}; it must be auto, {', '.join(DTYPES)}.")
        try:
            model = AutoModelForCausalLM.from_pretrained(path_or_id, dtype=DTYPES[dtype], revision=revision)
            tokenizer = AutoTokenizer.from_pretrained(path_or_id, revision=revision)
            return cls(model.to(device), tokenizer, name=str(path_or_id))
        except (OSError, ValueError, RuntimeError) as error:
            raise SpecdemoError(
                f"The target {path_or_id} could not be loaded: {error}\nGive a folder or a Hub repository with a "
                "causal language model, its config and its tokenizer, and a device with enough memory."
            ) from error

    def session(self, capacity: int, rows: int) -> HFSession:
        """Start a run of at most ``capacity`` tokens, scored through ``rows`` rows."""
        return HFSession(self, slot_count(capacity + rows), rows)

    def new_slots(self, size: int) -> tuple[list[Tensor], list[Tensor]]:
        """Empty keys and values [1, heads, size, head size] of every layer."""

        def empty(shape: tuple[int, ...]) -> Tensor:
            return torch.zeros(1, shape[0], size, shape[1], dtype=self.dtype, device=self.device)

        return [empty(k) for k, _ in self.shapes], [empty(v) for _, v in self.shapes]

    @torch.no_grad()
    def forward(
        self,
        keys: list[Tensor],
        values: list[Tensor],
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        mask: Mask,
        layout: Tensor | None = None,
    ) -> Tensor:
        """One forward: writes ``keys`` and ``values`` at ``slots`` [rows], see SlotCache and masks.

        Args:
            tokens, positions: [1, rows].

        Returns:
            logits [1, rows, V] in the model's dtype.
        """
        cache = SlotCache(keys, values, slots, layout)
        output = self.model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True, return_dict=True
        )
        logits: Tensor = output.logits
        return logits

    @torch.no_grad()
    def read(
        self, keys: list[Tensor], values: list[Tensor], tokens: Tensor, positions: Tensor, slots: Tensor, mask: Mask
    ) -> None:
        """As :meth:`forward` without logits: the prompt."""
        cache = SlotCache(keys, values, slots)
        self.model.base_model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, cache=cache, use_cache=True, return_dict=True
        )

    def masks(self, allowed: Tensor, behind: Tensor) -> Mask:
        """[rows, slots] what each row sees, and how many positions behind it each slot is -> the model's masks."""
        near = allowed & (behind < self.sliding) if self.sliding else allowed
        return masks(allowed, near, self.kinds, self.sliding is not None, self.dtype)


class HFSession:
    """One run's keys and values, as :class:`specdemo.types.TargetSession`.

    Slot i holds the token at position i for all committed tokens but the last one, which is row 0 of every block.
    """

    compile_ms = 0.0

    def __init__(self, target: HFTarget, size: int, rows: int) -> None:
        self.target, self.size, self.rows = target, size, rows
        self.keys, self.values = target.new_slots(size)
        self.columns = torch.arange(size, device=target.device)
        self.base, self.last = -1, -1

    def prefill(self, tokens: Sequence[int]) -> None:
        """Read the prompt (all of it; at least one token): all but its last token, which the first block scores."""
        if not tokens or len(tokens) + self.rows > self.size:
            raise SpecdemoError(
                f"The prompt has {len(tokens)} tokens; this session holds 1 to {self.size - self.rows}."
            )
        for start in range(0, len(tokens) - 1, PREFILL_ROWS):
            slots = self.columns[start : min(start + PREFILL_ROWS, len(tokens) - 1)]
            behind = slots[:, None] - self.columns
            mask = self.target.masks(behind >= 0, behind)
            chunk = torch.tensor([tokens[start : start + len(slots)]], device=self.target.device)
            self.target.read(self.keys, self.values, chunk, slots[None], slots, mask)
        self.base, self.last = len(tokens) - 1, tokens[-1]

    def score(self, proposal: Proposal) -> Tensor:
        """One forward over [last committed token, *draft, padding]: float [n + 1, V] logits, see TargetSession."""
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
        slots = self.columns[self.base : end]
        logits = self.target.forward(self.keys, self.values, tokens, positions, slots, mask, layout)[0, : n + 1]
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

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


def _eos(model: Any, tokenizer: Any) -> frozenset[int]:
    """End tokens by transformers' own order of precedence (an int, a list or nothing at each place)."""
    for owner in (model.generation_config, model.config.get_text_config(), tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        if ids is not None:
            return frozenset([ids] if isinstance(ids, int) else ids)
    return frozenset()


def _window(config: Any) -> int:
    """Context window in tokens. Long RoPE changes all positions when passing its original window, so it ends there."""
    config = config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    window = getattr(config, "max_position_embeddings", None) or 1 << 20
    return min(window, rope.get("original_max_position_embeddings") or window) if _longrope(rope) else int(window)


def _longrope(rope: dict[str, Any]) -> bool:
    return rope.get("rope_type") == "longrope"


def _difference(expected: Tensor, got: Tensor) -> float:
    """Median over rows of the relative distance of logits, each row centred (a common shift means nothing)."""
    expected, got = (logits - logits.mean(-1, keepdim=True) for logits in (expected, got))
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=1e-9)).median())


@torch.no_grad()
def _probe(target: HFTarget) -> tuple[list[tuple[tuple[int, ...], tuple[int, ...]]], int]:
    """Shapes of the layers' keys and values, and the vocabulary; refuses a model that slots cannot serve.

    The model is not believed but tried: a short text scored through slots must give the logits of its own forward.
    """
    model = target.model
    unsupported = set(target.kinds or ()) - {"full_attention", "sliding_attention"}
    try:
        if unsupported:
            raise NotImplementedError(f"layers of type {', '.join(sorted(unsupported))} cannot be rolled back")
        vocabulary = model.get_input_embeddings().weight.shape[0]
        tokens = (torch.arange(1, 8, device=target.device) * (vocabulary // 9)).clamp(max=vocabulary - 1)[None]
        model.set_attn_implementation("eager")
        expected = model(input_ids=tokens, use_cache=False).logits[0].double()
        model.set_attn_implementation(ATTENTION)
        if model.config.get_text_config()._attn_implementation != ATTENTION:
            raise NotImplementedError("its attention cannot be replaced through transformers' AttentionInterface")
        probe, columns = ShapeProbe(), torch.arange(7, device=target.device)
        behind = columns[:, None] - columns
        mask = target.masks(behind >= 0, behind)
        model(input_ids=tokens, position_ids=columns[None], attention_mask=mask, cache=probe, use_cache=True)
        if not probe.shapes:
            raise NotImplementedError("it keeps no keys and values in the cache it is given")
        target.shapes = probe.shapes
        session = HFSession(target, 16, 6)
        session.prefill(tokens[0, :3].tolist())
        got = session.score(Proposal(tuple(tokens[0, 3:].tolist()))).double()
        error = _difference(expected[2:], got)
        if not error < (0.25 if target.dtype in (torch.bfloat16, torch.float16) else 1e-3):
            raise NotImplementedError(f"its logits through slots differ from its own (relative error {error:.2g})")
    except (NotImplementedError, TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        raise SpecdemoError(
            f"{target.name} ({type(model).__name__}) cannot be a target: {error}. Speculative decoding needs a decoder "
            "that attends to stored keys and values by explicit positions; recurrent and hybrid models do not."
        ) from error
    return probe.shapes, expected.shape[-1]
