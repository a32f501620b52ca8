"""The target model: load, score, commit. The only importer of transformers models.

Every forward after the prompt goes through one padded number of rows, plain decoding included, so that the logits of a
position do not depend on how many tokens were drafted around it. Prompts are read the same way in every run.

Not promised to the last bit, though right up to rounding: mixtures of experts (the rows an expert multiplies depend on
the other rows' tokens), trees under head sizes that are no multiple of 32, and elementwise kernels whose threads split
a row at odd places. It is a property of kernels: tests hold it on the machine they run on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from specdemo.compiled import Compiled
from specdemo.models import home
from specdemo.session import HFSession
from specdemo.slots import (
    ATTENTION,
    Mask,
    ShapeProbe,
    SlotCache,
    difference,
    layer_kinds,
    masks,
    sliding_window,
    tolerance,
)
from specdemo.tokens import HFTokenizer
from specdemo.types import Proposal, SpecdemoError

ROWS = (9, 17, 33, 65, 129)  # 9 rows cost what 1 to 8 cost, so every draft length up to 8 gives the same bits
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
        layers: the hidden states that every forward hands out, see :meth:`read_layers`.
        shared: where drafters that are loaded one by one, but share weights, find each other.
    """

    exact_trees = True

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "", compile: bool = False, compile_folder: Path | None = None
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = HFTokenizer(tokenizer)
        self.name = name or model.config.name_or_path or type(model).__name__
        self.device, self.dtype = model.device, model.dtype
        # transformers renamed it; 5.20, the last release for Python 3.10, has the old name
        self._cache = "cache" if "cache" in signature(type(model).forward).parameters else "past_key_values"
        self.kinds, self.sliding = layer_kinds(model.config), sliding_window(model.config)
        self.eos = _eos(model, tokenizer)
        self.window = _window(model.config)
        self.compiled: Compiled | None = None
        self.layers: tuple[int, ...] = ()
        self.shared: dict[Any, Any] = {}
        self.shapes, self.vocab_size = _probe(self)
        if compile:
            self.compiled = Compiled(self, compile_folder or home() / "compiled")

    @classmethod
    def load(
        cls,
        path_or_id: str,
        *,
        dtype: str = "auto",
        device: str = "auto",
        compile: bool = False,
        revision: str | None = None,
    ) -> HFTarget:
        """Load a folder or a Hub repository.

        Args:
            path_or_id: what ``from_pretrained`` takes. ``revision``: branch, tag or commit of a Hub repository.
            dtype: "auto" or a key of ``DTYPES``. ``device``: "auto", "cpu", "cuda", "cuda:1" ...
            compile: score through compiled code, see compiled.py; made or loaded when the first session starts.
        """
        device = auto_device() if device == "auto" else device
        dtype = auto_dtype(device) if dtype == "auto" else dtype
        if dtype not in DTYPES:
            raise SpecdemoError(f"dtype is {dtype!r}; it must be auto, {', '.join(DTYPES)}.")
        try:
            model = AutoModelForCausalLM.from_pretrained(path_or_id, dtype=DTYPES[dtype], revision=revision)
            tokenizer = AutoTokenizer.from_pretrained(path_or_id, revision=revision)
            return cls(model.to(device), tokenizer, name=str(path_or_id), compile=compile)
        except (OSError, ValueError, RuntimeError) as error:
            raise SpecdemoError(
                f"The target {path_or_id} could not be loaded: {error}\nGive a folder or a Hub repository with a "
                "causal language model, its config and its tokenizer, and a device with enough memory."
            ) from error

    def session(self, capacity: int, rows: int) -> HFSession:
        """Start a run of at most ``capacity`` tokens, scored through ``rows`` rows."""
        return HFSession(self, slot_count(capacity + rows), rows)

    def read_layers(self, layers: Iterable[int]) -> None:
        """Drafters will read the hidden states at ``layers`` (see :class:`specdemo.types.Target`). Before any session.

        Raises:
            SpecdemoError: the model has no such layer.
        """
        wrong = [layer for layer in layers if not 0 <= layer <= self.depth]
        if wrong:
            raise SpecdemoError(
                f"{self.name} has hidden states 0 to {self.depth}; a drafter asks for number {wrong[0]}. It was made "
                "for another target."
            )
        self.layers = tuple(sorted({*self.layers, *layers}))

    @property
    def embedding(self) -> Tensor:
        """[V, hidden] of the input tokens."""
        weight: Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def lm_head(self) -> Tensor:
        """[V, hidden] of the output tokens."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def depth(self) -> int:
        """Decoder layers."""
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        """Size of a hidden state."""
        return int(self.model.config.get_text_config().hidden_size)

    @property
    def width(self) -> int:
        """Columns of the hidden states handed out."""
        return len(self.layers) * self.hidden_size

    def layer_columns(self, layers: Sequence[int]) -> Tensor:
        """Columns of the features that belong to ``layers``, in that order."""
        size = self.hidden_size
        starts = [self.layers.index(layer) * size for layer in layers]
        return torch.cat([torch.arange(start, start + size, device=self.device) for start in starts])

    @contextmanager
    def untouched(self) -> Iterator[Any]:
        """The model as transformers would run it, with its own attention. Not while sessions run."""
        self.model.set_attn_implementation("sdpa" if self.model._supports_sdpa else "eager")
        try:
            yield self.model
        finally:
            self.model.set_attn_implementation(ATTENTION)

    @property
    def compile_note(self) -> str:
        """Why scoring runs eagerly although compilation was asked for; empty if it does not."""
        return self.compiled.note if self.compiled else ""

    def warm_up(self, rows: int, capacity: int, trees: bool = False) -> float:
        """Run one block (of a tree) through the shapes of such a session, so that the first round of a run is not slow.

        Returns:
            milliseconds spent waiting for compiled code.
        """
        session = self.session(capacity, rows)
        session.prefill([0])
        session.score(Proposal((0, 0), (-1, -1)) if trees else Proposal(()))
        return session.compile_ms

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
    ) -> tuple[Tensor, Tensor]:
        """One forward: writes ``keys`` and ``values`` at ``slots`` [rows], see SlotCache and masks.

        Args:
            tokens, positions: [1, rows].

        Returns:
            logits [1, rows, V] and hidden states [1, rows, width] at ``layers``, in the model's dtype.
        """
        output = self.run(self.model, SlotCache(keys, values, slots, layout), tokens, positions, mask)
        return output.logits, self._hidden(output, tokens)

    @torch.no_grad()
    def read(
        self, keys: list[Tensor], values: list[Tensor], tokens: Tensor, positions: Tensor, slots: Tensor, mask: Mask
    ) -> Tensor:
        """As :meth:`forward` without logits: the prompt. Returns the hidden states."""
        output = self.run(self.model.base_model, SlotCache(keys, values, slots), tokens, positions, mask)
        return self._hidden(output, tokens)

    @torch.no_grad()
    def logits(self, cache: SlotCache, tokens: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        """[1, rows, V] as :meth:`forward`, with a cache of another arrangement."""
        logits: Tensor = self.run(self.model, cache, tokens, positions, mask).logits
        return logits

    def run(self, model: Any, cache: SlotCache, tokens: Tensor, positions: Tensor, mask: Mask) -> Any:
        """What ``model``, the whole one or its base, says to [1, rows] tokens: transformers' own output."""
        return model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            return_dict=True,
            output_hidden_states=bool(self.layers),
            **{self._cache: cache},
        )

    def _hidden(self, output: Any, tokens: Tensor) -> Tensor:
        if not self.layers:
            return torch.empty(*tokens.shape, 0, dtype=self.dtype, device=self.device)
        return torch.cat([output.hidden_states[layer] for layer in self.layers], -1)

    def masks(self, allowed: Tensor, behind: Tensor) -> Mask:
        """[rows, slots] what each row sees, and how many positions behind it each slot is -> the model's masks."""
        near = allowed & (behind < self.sliding) if self.sliding else allowed
        return masks(allowed, near, self.kinds, self.sliding is not None, self.dtype)


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
        target.run(model, probe, tokens, columns[None], mask)
        if not probe.shapes:
            raise NotImplementedError("it keeps no keys and values in the cache it is given")
        target.shapes = probe.shapes
        session = HFSession(target, 16, 6, compiled=False)
        session.prefill(tokens[0, :3].tolist())
        got = session.score(Proposal(tuple(tokens[0, 3:].tolist()))).double()
        error = difference(expected[2:], got)
        if not error < tolerance(target.dtype):
            raise NotImplementedError(f"its logits through slots differ from its own (relative error {error:.2g})")
    except (NotImplementedError, TypeError, ValueError, AttributeError, KeyError, IndexError, RuntimeError) as error:
        raise SpecdemoError(
            f"{target.name} ({type(model).__name__}) cannot be a target: {error}. Speculative decoding needs a decoder "
            "that attends to stored keys and values by explicit positions; recurrent and hybrid models do not."
        ) from error
    return probe.shapes, expected.shape[-1]
