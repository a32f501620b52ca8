"""Strict readers of published Hydra and Medusa heads; see formats.py for EAGLE's.

Both read the target's last hidden state, after its final norm (Hydra's ``hidden_state_offset`` 0).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdemo.drafters.checkpoint import demand, demand_finite, read_tensors, weights_file
from specdemo.drafters.head_configs import HydraConfig, MedusaConfig
from specdemo.drafters.head_settings import CONFIG, number, read_config, rope, whole
from specdemo.types import SpecdemoError

HALF = 2  # bytes
MANY = 64  # more heads or layers than anybody publishes
LLAMA_HEAD = 128  # numbers per attention head in every Llama of 7B and more
PREFIX = "prefix_embeding_layer."  # spelled like this in the files
PREFIX_LAYER = PREFIX + "layers.0."
EMBEDDING, DEAD_EMBEDDING = "input_embed_fn.weight", PREFIX + "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class HydraCheckpoint:
    """What a Hydra checkpoint holds.

    Attributes:
        weights: by the names of published "prefix-mlp" files, also for "mlp" ones; of the tied residual blocks
            (``hydra_mlp.i.3``, ``5``, ``7``) only the first.
        embedding: [V, H] the file's copy of the target's embedding; None: the file has none, take the target's.
    """

    config: HydraConfig
    weights: dict[str, Tensor]
    embedding: Tensor | None


@dataclass(frozen=True, slots=True)
class MedusaCheckpoint:
    """What a Medusa checkpoint holds: ``weights`` by their published names."""

    config: MedusaConfig
    weights: dict[str, Tensor]


def read_hydra(
    folder: Path, target_size: int, vocab_size: int, base: Mapping[str, Any] | None = None
) -> HydraCheckpoint:
    """Read a Hydra head (architectures "prefix-mlp" and "mlp", grounded) made for a target of these dimensions.

    Args:
        target_size: hidden size of the target. ``vocab_size``: rows of its embedding.
        base: the target's config as a dict: the published files do not say what the prefix layer is like, it is built
            as one of the target's layers. None: as in Vicuna 1.3 (heads of 128, eps 1e-6, rotary base 10000).

    Raises:
        SpecdemoError: anything that does not fit, with its name.
    """
    settings, file = read_config(folder), weights_file(folder)
    _check_hydra(file, settings)
    tensors = _untied(file, _renamed(read_tensors(folder)))
    _check_rows(file, tensors.get("hydra_mlp.0.1.linear.weight"), target_size)
    config = _hydra_config(file, settings, tensors, target_size, vocab_size, base or {})
    expected = _hydra_shapes(config)
    size = (vocab_size, target_size)
    optional = {name: size for name in (EMBEDDING, DEAD_EMBEDDING) if name in tensors}
    if not config.prefix:
        _fill_biases(tensors, config)
        optional.pop(DEAD_EMBEDDING, None)
    demand(file, tensors, expected | optional)
    weights, embedding = {name: tensors[name] for name in expected}, tensors.get(EMBEDDING)
    demand_finite(file, weights if embedding is None else {**weights, EMBEDDING: embedding})
    return HydraCheckpoint(config, weights, embedding)


def read_medusa(folder: Path, target_size: int, vocab_size: int) -> MedusaCheckpoint:
    """Read Medusa heads made for a target of these dimensions.

    Published configs say 2 heads where the file holds 5 (the original code overrides it), so the file is believed.

    Raises:
        SpecdemoError: anything that does not fit, with its name.
    """
    settings, file = read_config(folder), weights_file(folder)
    tensors = read_tensors(folder)
    layers = whole(file, settings, "medusa_num_layers", limit=MANY)
    heads = {name.partition(".")[0] for name in tensors if name[:1].isdecimal()}
    _check_rows(file, tensors.get("0.0.linear.weight"), target_size)
    if not heads:
        raise SpecdemoError(f"{file} has no heads: no tensor is called 0.{layers}.weight. Take the file as published.")
    config = MedusaConfig(target_size, len(heads), layers, vocab_size)
    demand(file, tensors, _medusa_shapes(config))
    demand_finite(file, tensors)
    return MedusaCheckpoint(config, tensors)


def hydra_bytes(config: HydraConfig) -> int:
    """Bytes of a head's tensors in a 16-bit file as published: tied blocks once, both copies of the embedding."""
    copies = 2 if config.prefix else 1
    numbers = sum(math.prod(shape) for shape in _hydra_shapes(config).values())
    return HALF * (numbers + copies * config.vocab_size * config.hidden_size)


def _check_hydra(file: Path, settings: Mapping[str, Any]) -> None:
    wanted: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
        ("hydra_head_arch", None, ("prefix-mlp", "mlp")),
        ("grounded_heads", None, (True,)),
        ("hidden_state_offset", 0, (0,)),
    )
    for key, default, allowed in wanted:
        value = settings.get(key, default)
        if value not in allowed:
            words = " or ".join(map(repr, allowed))
            raise SpecdemoError(
                f"{file.parent / CONFIG}: {key} is {value!r}; only Hydra heads with {words} can be read."
            )


def _check_rows(file: Path, block: Tensor | None, target_size: int) -> None:
    if block is not None and block.dim() == 2 and block.shape[0] != target_size:
        raise SpecdemoError(
            f"{file}: the head reads hidden states of {block.shape[0]} numbers, the target's have {target_size}. It "
            "was made for another target; choose one that was trained for this one."
        )


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of "mlp" heads, which have no dropout between the blocks, as those of "prefix-mlp" heads."""
    plain = "hydra_mlp.0.0.linear.weight" in tensors

    def rename(name: str) -> str:
        if plain:
            name = re.sub(r"^(hydra_mlp\.\d+)\.(\d+)\.", lambda m: f"{m[1]}.{2 * int(m[2]) + 1}.", name)
        return re.sub(r"^(hydra_lm_head\.\d+)\.(weight|bias)$", r"\1.1.\2", name)

    return {rename(name): tensor for name, tensor in tensors.items() if not name.endswith("rotary_emb.inv_freq")}


def _untied(file: Path, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Blocks 5, 7 ... of a head are block 3 under other names: checked, and left out."""
    kept = {}
    for name, tensor in tensors.items():
        later = re.fullmatch(r"(hydra_mlp\.\d+)\.(\d+)\.(linear\.\w+)", name)
        first = tensors.get(f"{later[1]}.3.{later[3]}") if later and int(later[2]) in range(5, 100, 2) else None
        if first is None:
            kept[name] = tensor
        elif not torch.equal(first, tensor):
            raise SpecdemoError(
                f"{file}: {name} differs from block 3 of its head, which it is in Hydra's own network. The file comes "
                "from another one and cannot be read."
            )
    return kept


def _fill_biases(tensors: dict[str, Tensor], config: HydraConfig) -> None:
    """LM heads of "mlp" files may come without a bias, all of them: zero."""
    names = [f"hydra_lm_head.{i}.1.bias" for i in range(config.num_heads)]
    like = tensors.get("hydra_lm_head.0.1.weight")
    if like is not None and not any(name in tensors for name in names):
        tensors.update({name: like.new_zeros(config.vocab_size) for name in names})


def _hydra_config(
    file: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    target_size: int,
    vocab_size: int,
    base: Mapping[str, Any],
) -> HydraConfig:
    count, layers = (whole(file, settings, key, limit=MANY) for key in ("hydra_num_heads", "hydra_num_layers"))
    if settings["hydra_head_arch"] == "mlp":
        return HydraConfig(target_size, count, layers, False, 0, 0, 0, 0.0, 0.0, vocab_size)
    guess = {} if target_size % LLAMA_HEAD else {"num_attention_heads": target_size // LLAMA_HEAD}
    layer = {**guess, **settings, **base}
    heads = whole(file, layer, "num_attention_heads")
    gate = tensors.get(PREFIX_LAYER + "mlp.gate_proj.weight")
    theta, factor = rope(file, layer)
    if factor != 1.0:
        raise SpecdemoError(f"{file}: a Hydra prefix layer with scaled rotary embedding cannot be read.")
    return HydraConfig(
        target_size,
        count,
        layers,
        prefix=True,
        intermediate_size=int(gate.shape[0])
        if gate is not None and gate.dim() == 2
        else whole(file, layer, "intermediate_size"),
        attention_heads=heads,
        kv_heads=whole(file, layer, "num_key_value_heads", "num_attention_heads"),
        rms_norm_eps=number(file, layer, "rms_norm_eps", 1e-6),
        rope_theta=theta,
        vocab_size=vocab_size,
    )


def _hydra_shapes(c: HydraConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the network, by its published name."""
    size = c.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(c.num_heads):
        wide = (size, (i + 2) * size)
        blocks = {"1.linear": wide, "1.res_connection": wide}
        if c.num_layers > 1:
            blocks["3.linear"] = (size, size)
        for name, shape in blocks.items():
            shapes[f"hydra_mlp.{i}.{name}.weight"], shapes[f"hydra_mlp.{i}.{name}.bias"] = shape, (size,)
        shapes[f"hydra_lm_head.{i}.1.weight"] = (c.vocab_size, size)
        shapes[f"hydra_lm_head.{i}.1.bias"] = (c.vocab_size,)
    return shapes | _prefix_shapes(c) if c.prefix else shapes


def _prefix_shapes(c: HydraConfig) -> dict[str, tuple[int, ...]]:
    size, kv = c.hidden_size, c.hidden_size // c.attention_heads * c.kv_heads
    shapes: dict[str, tuple[int, ...]] = {f"{PREFIX_LAYER}self_attn.{n}_proj.weight": (size, size) for n in "qo"}
    shapes |= {f"{PREFIX_LAYER}self_attn.{n}_proj.weight": (kv, size) for n in "kv"}
    shapes |= {f"{PREFIX_LAYER}mlp.{n}_proj.weight": (c.intermediate_size, size) for n in ("gate", "up")}
    shapes[PREFIX_LAYER + "mlp.down_proj.weight"] = (size, c.intermediate_size)
    shapes |= {f"{PREFIX_LAYER}{n}_layernorm.weight": (size,) for n in ("input", "post_attention")}
    shapes[PREFIX + "norm.weight"] = (size,)
    return shapes


def _medusa_shapes(c: MedusaConfig) -> dict[str, tuple[int, ...]]:
    size = c.hidden_size
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(c.num_heads):
        for j in range(c.num_layers):
            shapes[f"{i}.{j}.linear.weight"], shapes[f"{i}.{j}.linear.bias"] = (size, size), (size,)
        shapes[f"{i}.{c.num_layers}.weight"] = (c.vocab_size, size)
    return shapes
