"""Strict readers of published EAGLE heads: what a file says must be what its network needs, to the last name and shape.

The layouts that exist (key names as published; one decoder layer in all of them, whatever ``num_hidden_layers`` says):

* *eagle-1* (yuhuili/EAGLE-*): ``fc`` [H, 2 H], ``layers.0.*`` without an input norm, the target's LM head.
* *eagle-3* (yuhuili/EAGLE3-*): ``midlayer.*``, own ``lm_head`` over a part of the vocabulary, listed by ``d2t``.
* *specforge* (SpecForge, NVIDIA): the same tensors, some under ``model.``, or a whole vocabulary without ``d2t``.
* *speculators* (vllm-project): ``layers.0.*``, settings of the layer in ``transformer_layer_config``.

Readers of Hydra and Medusa heads are in head_formats.py; formats.py offers all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdemo.drafters.checkpoint import demand, demand_finite, read_tensors, weights_file
from specdemo.drafters.eagle_head import EagleConfig, EagleHead
from specdemo.drafters.head_settings import CONFIG, number, read_config, rope, table, whole
from specdemo.types import SpecdemoError

IDS = "eagle_aux_hidden_state_layer_ids"
HALF, LONG = 2, 8  # bytes
PLACES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"), "layers.0.self_attn."),
    **dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "layers.0.mlp."),
    **dict.fromkeys(("hidden_norm", "input_layernorm", "post_attention_layernorm"), "layers.0."),
}


@dataclass(frozen=True, slots=True)
class EagleCheckpoint:
    """What an EAGLE checkpoint holds.

    Attributes:
        weights: as ``EagleHead.state_dict()`` names them, in the file's dtype; ``lm_head.weight`` if it has its own.
        vocab: int64 [rows of the LM head] target id of each row; None: the whole vocabulary, in order.
        embedding: [V, hidden] of its own; None: the target's.
        layout: "eagle-1", "eagle-3", "specforge" or "speculators", see the module.
    """

    config: EagleConfig
    weights: dict[str, Tensor]
    vocab: Tensor | None
    embedding: Tensor | None
    layout: str


def read_eagle(folder: Path, target_layers: int, target_size: int, vocab_size: int) -> EagleCheckpoint:
    """Read an EAGLE-1, -2 or -3 head made for a target of these dimensions.

    Args:
        target_layers: decoder layers of the target. ``target_size``: its hidden size.
        vocab_size: rows of its embedding.

    Raises:
        SpecdemoError: anything that does not fit, with its name.
    """
    settings, layout = _settings(folder)
    found = _Found.read(folder)
    if layout == "eagle-3" and not _is_third(settings, found.tensors):
        layout = "eagle-1"
    layers = (target_layers,) if layout == "eagle-1" else _layers(found.file, settings, target_layers)
    config = _config(found, settings, layers, target_size, vocab_size, layout != "eagle-1")
    _check_target(found, settings, config)
    if config.draft_vocab_size in (None, vocab_size):  # the maps, if any, say nothing: every row is its own token
        found = found.without("d2t", "t2d")
    expected, extra = _shapes(config), _extra(config, found.tensors)
    needed = {_published(name): shape for name, shape in expected.items()} | extra
    demand(found.file, found.spelled(found.tensors), {found.spell(name): shape for name, shape in needed.items()})
    demand_finite(found.file, found.spelled(needed.keys() - {"d2t", "t2d"}))
    weights = {name: found.tensors[_published(name)] for name in expected}
    d2t, t2d = (found.tensors.get(name) for name in ("d2t", "t2d"))
    vocab = None if d2t is None else _vocabulary(found.file, d2t, t2d, vocab_size)
    return EagleCheckpoint(config, weights, vocab, found.tensors.get("embed_tokens.weight"), layout)


def eagle_bytes(config: EagleConfig, with_maps: bool, with_embedding: bool) -> int:
    """Bytes of a head's tensors in a 16-bit file.

    Args:
        with_maps: the file lists its vocabulary (``d2t``, ``t2d``). ``with_embedding``: it has an embedding of its own.
    """
    numbers = sum(math.prod(shape) for shape in _shapes(config).values())
    numbers += with_embedding * config.vocab_size * config.hidden_size
    maps = LONG * (config.draft_vocab_size or config.vocab_size) + config.vocab_size
    return HALF * numbers + with_maps * maps


# ---------------------------------------------------------------------------------------------------------- settings


def _settings(folder: Path) -> tuple[dict[str, Any], str]:
    """The config with the layer's settings beside the others, and the layout as far as the config tells it."""
    config = read_config(folder)
    if "speculators_model_type" not in config and "speculators_config" not in config:
        return config, "specforge" if "eagle3" in str(config.get("architectures")).lower() else "eagle-3"
    kind = config.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise SpecdemoError(f"{folder / CONFIG}: a speculators head of type {kind!r}; only eagle3 can be read.")
    layer = config.get("transformer_layer_config")
    if not isinstance(layer, dict) or not isinstance(config.get("norm_before_residual"), bool):
        raise SpecdemoError(
            f"{folder / CONFIG}: a speculators head needs transformer_layer_config and norm_before_residual; guessing "
            "them would ruin its drafts. Use the config.json published with the weights."
        )
    return layer | {key: value for key, value in config.items() if value is not None}, "speculators"


def _is_third(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Any sign of EAGLE-3, so that one that lacks a tensor is told which, and not taken for EAGLE-1."""
    q_proj = tensors.get("layers.0.self_attn.q_proj.weight")
    hidden = settings.get("hidden_size")
    wide = q_proj is not None and q_proj.dim() == 2 and isinstance(hidden, int) and q_proj.shape[1] == 2 * hidden
    signs = {"norm.weight", "d2t", "t2d", "layers.0.hidden_norm.weight"}
    return wide or settings.get("draft_vocab_size") is not None or bool(signs & tensors.keys())


def _layers(file: Path, settings: Mapping[str, Any], target_layers: int) -> tuple[int, ...]:
    """The target's hidden states an EAGLE-3 head reads, counted as in :class:`specdemo.types.Target`.

    Two conventions are in use under one name. At the top level (speculators, vLLM) n is the state that *enters* layer
    n, which is transformers' ``hidden_states[n]``. In ``eagle_config`` (SpecForge, SGLang, NVIDIA) n is the layer whose
    *output* is read, ``hidden_states[n + 1]``. Their defaults agree: entering layers 2, L // 2 and L - 3.
    """
    nested = table(file, settings, "eagle_config")
    if nested.get("use_aux_hidden_state") is False:
        raise SpecdemoError(f"{file.parent / CONFIG}: an EAGLE-3 head without auxiliary hidden states cannot be read.")
    ids, shift = (settings[IDS], 0) if settings.get(IDS) else (nested.get(IDS), 1)
    if not ids:
        ids, shift = [2, target_layers // 2, target_layers - 3], 0
    if not isinstance(ids, list) or not all(isinstance(i, int) and 0 <= i + shift < target_layers for i in ids):
        raise SpecdemoError(
            f"{file.parent / CONFIG}: the head reads the target before its layers {ids} (plus {shift}), but the target "
            f"has layers 0 to {target_layers - 1}. Choose a head that was trained for this target."
        )
    return tuple(i + shift for i in ids)


def _config(
    found: _Found, settings: Mapping[str, Any], layers: tuple[int, ...], target_size: int, vocab_size: int, third: bool
) -> EagleConfig:
    """The network's shape: sizes from the config, parts that may be left out from the config or else the tensors."""
    file, tensors = found.file, found.tensors
    hidden, heads = whole(file, settings, "hidden_size"), whole(file, settings, "num_attention_heads")
    if settings.get("hidden_act", "silu") != "silu":
        raise SpecdemoError(f"{file.parent / CONFIG}: hidden_act {settings['hidden_act']!r}; only silu can be read.")

    def has(part: str, *keys: str) -> bool:
        told = next((settings[key] for key in keys if isinstance(settings.get(key), bool)), None)
        return any(name.startswith(part) for name in tensors) if told is None else told

    if heads % whole(file, settings, "num_key_value_heads", "num_attention_heads"):
        raise SpecdemoError(f"{file.parent / CONFIG}: num_key_value_heads does not divide num_attention_heads.")
    rows = whole(file, {"draft_vocab_size": vocab_size} | _set(settings, "draft_vocab_size"), "draft_vocab_size")
    own_head = "lm_head.weight" in tensors or rows != vocab_size or hidden != target_size
    theta, factor = rope(file, settings)
    return EagleConfig(
        hidden_size=hidden,
        intermediate_size=whole(file, settings, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=whole(file, settings, "num_key_value_heads", "num_attention_heads"),
        head_dim=whole(file, {"head_dim": hidden // heads} | _set(settings, "head_dim"), "head_dim"),
        target_size=target_size,
        layers=layers,
        vocab_size=vocab_size,
        draft_vocab_size=rows if own_head else None,
        version=3 if third else 1,
        rms_norm_eps=number(file, settings, "rms_norm_eps", 1e-6),  # Llama's default, also in EAGLE's code
        rope_theta=theta,
        rope_factor=factor,
        fc_bias=has("fc.bias", "bias"),
        attention_bias=has("layers.0.self_attn.q_proj.bias", "qkv_bias", "attention_bias"),
        fc_norm=third and has("fc_norm.", "fc_norm"),
        input_norm=third and has("input_norm.", "norm_before_fc"),
        norm_before_residual=third and bool(settings.get("norm_before_residual")),
        norm_output=third and bool(settings.get("norm_output")),
        qk_norm=has("layers.0.self_attn.q_norm."),
    )


def _set(settings: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {key: settings[key]} if settings.get(key) is not None else {}


# ----------------------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True, slots=True)
class _Found:
    """A file's tensors under one spelling (no ``model.``, ``layers.0.`` for ``midlayer.``), and its own spelling."""

    file: Path
    tensors: dict[str, Tensor]
    spelling: dict[str, str]

    @classmethod
    def read(cls, folder: Path) -> _Found:
        found = cls(weights_file(folder), {}, {})
        for original, tensor in read_tensors(folder).items():
            name = re.sub(r"^midlayer\.", "layers.0.", original.removeprefix("model."))
            if name in found.tensors:
                raise SpecdemoError(f"{found.file} has a tensor twice: {found.spell(name)}, {original}. Remove one.")
            if not name.endswith("rotary_emb.inv_freq"):  # a table that old versions of transformers saved
                found.tensors[name], found.spelling[name] = tensor, original
        return found

    def without(self, *names: str) -> _Found:
        return replace(self, tensors={n: t for n, t in self.tensors.items() if n not in names})

    def spell(self, name: str) -> str:
        """As the file has it, or would have it."""
        middle = any("midlayer." in original for original in self.spelling.values())
        return self.spelling.get(name, name.replace("layers.0.", "midlayer.") if middle else name)

    def spelled(self, names: Iterable[str]) -> dict[str, Tensor]:
        return {self.spell(name): self.tensors[name] for name in names}


def _published(name: str) -> str:
    """EagleHead's name of a tensor -> the published one."""
    return PLACES.get(name.partition(".")[0], "") + name


def _shapes(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the network, by EagleHead's names."""
    with torch.device("meta"):  # builds nothing
        return {name: tuple(tensor.shape) for name, tensor in EagleHead(config).state_dict().items()}


def _extra(config: EagleConfig, tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """What the file must hold beside the network: the vocabulary of a part, an embedding of another size."""
    extra: dict[str, tuple[int, ...]] = {}
    rows = config.draft_vocab_size or config.vocab_size
    if rows != config.vocab_size:
        extra["d2t"] = (rows,)
        if "t2d" in tensors:
            extra["t2d"] = (config.vocab_size,)
    if "embed_tokens.weight" in tensors or config.hidden_size != config.target_size:
        extra["embed_tokens.weight"] = (config.vocab_size, config.hidden_size)
    return extra


def _check_target(found: _Found, settings: Mapping[str, Any], config: EagleConfig) -> None:
    """The mistakes people make: a head of another target. Told before its shapes are."""
    file, tensors = found.file, found.tensors
    own = tensors.get("embed_tokens.weight")
    rows = own.shape[0] if own is not None and own.dim() == 2 else config.vocab_size
    told = settings.get("vocab_size") or config.vocab_size
    for what, value in (("embed_tokens.weight has rows for", rows), ("config.json is for", told)):
        if value != config.vocab_size:
            raise SpecdemoError(
                f"{file}: its {what} a vocabulary of {value} tokens, the target's has {config.vocab_size}. The head "
                "was made for another tokenizer; choose one that was trained for this target."
            )
    fc = tensors.get("fc.weight")
    wanted = len(config.layers) * config.target_size
    reads = config.hidden_size if config.version == 1 else wanted
    if config.version == 3 and fc is not None and fc.dim() == 2:
        reads = fc.shape[1]
    size = settings.get("target_hidden_size") or config.target_size
    if reads != wanted or size != config.target_size:
        raise SpecdemoError(
            f"{file}: the head reads {reads} numbers per token (fc.weight; target_hidden_size {size}), but the "
            f"target's hidden states at {list(config.layers)} have {wanted}. It was made for another target; choose "
            "one that was trained for this one."
        )


def _vocabulary(file: Path, d2t: Tensor, t2d: Tensor | None, vocab_size: int) -> Tensor:
    """Target id of each row of the LM head: row j is token j + d2t[j].

    Rows are in the order of their ids in every published head, and ``t2d`` marks the same ids; a file that breaks
    either was saved wrongly (a cast to a float type does it) and would draft other tokens than its network means.
    """
    if d2t.is_floating_point() or d2t.dtype == torch.bool:
        kind = str(d2t.dtype).removeprefix("torch.")
        raise SpecdemoError(f"{file}: d2t holds {kind} where token ids are whole numbers. Take the file as published.")
    ids = torch.arange(len(d2t)) + d2t.long()
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise SpecdemoError(
            f"{file}: d2t leads to token {int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())}, outside the "
            f"target's vocabulary of {vocab_size}. The head was made for another tokenizer, or the file is damaged."
        )
    if bool((ids[1:] <= ids[:-1]).any()):
        row = int((ids[1:] <= ids[:-1]).nonzero()[0]) + 1
        raise SpecdemoError(
            f"{file}: d2t is out of order at row {row} (token {int(ids[row])} after {int(ids[row - 1])}): permuted or "
            "damaged. Take the file as published."
        )
    if t2d is not None and not torch.equal(t2d.nonzero().flatten(), ids):
        raise SpecdemoError(f"{file}: t2d marks other tokens than d2t leads to. Take the file as published.")
    return ids
