"""Published draft heads, written small and read back; and every way they can be wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from specdemo.drafters.eagle_head import EagleConfig, EagleHead
from specdemo.drafters.formats import (
    check_vocabulary,
    eagle_bytes,
    fetch,
    hydra_bytes,
    read_eagle,
    read_hydra,
    read_medusa,
    read_tensors,
)
from specdemo.drafters.head_configs import HydraConfig, MedusaConfig
from specdemo.types import SpecdemoError

H, MLP, HEADS, KV, DIM, V, DV, L = 16, 24, 4, 2, 4, 40, 10, 12  # of the head; the target has the same H
TARGET = (L, H, V)
Tensors = dict[str, Tensor]


def norms(*names: str, size: int = H) -> Tensors:
    return {f"{name}.weight": 1 + 0.1 * torch.randn(size) for name in names}


def layer(prefix: str, wide: int) -> Tensors:
    shapes = {
        "self_attn.q_proj": (HEADS * DIM, wide),
        "self_attn.k_proj": (KV * DIM, wide),
        "self_attn.v_proj": (KV * DIM, wide),
        "self_attn.o_proj": (H, HEADS * DIM),
        "mlp.gate_proj": (MLP, H),
        "mlp.up_proj": (MLP, H),
        "mlp.down_proj": (H, MLP),
    }
    return {f"{prefix}{name}.weight": torch.randn(*shape) for name, shape in shapes.items()}


def maps() -> Tensors:
    ids = torch.arange(DV) * 4 + 1
    marked = torch.zeros(V, dtype=torch.bool)
    marked[ids] = True
    return {"d2t": ids - torch.arange(DV), "t2d": marked}


def third(prefix: str = "midlayer.", rows: int | None = DV) -> Tensors:
    """The tensors of an EAGLE-3 head, without maps."""
    torch.manual_seed(3)
    names = (f"{prefix}{n}" for n in ("hidden_norm", "input_layernorm", "post_attention_layernorm"))
    head = {"fc.weight": torch.randn(H, 3 * H), **layer(prefix, 2 * H), **norms(*names, "norm")}
    return head if rows is None else head | {"lm_head.weight": torch.randn(rows, H)}


def first(bias: bool = True) -> Tensors:
    torch.manual_seed(1)
    head = {"embed_tokens.weight": torch.randn(V, H), "fc.weight": torch.randn(H, 2 * H), **layer("layers.0.", H)}
    return head | norms("layers.0.post_attention_layernorm") | ({"fc.bias": torch.randn(H)} if bias else {})


def llama(**more: Any) -> dict[str, Any]:
    """A config as published: a Llama's, in parts."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": H,
        "intermediate_size": MLP,
        "max_position_embeddings": 2048,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": V,
    } | more


def speculators(**more: Any) -> dict[str, Any]:
    nested = {k: v for k, v in llama().items() if k != "architectures"}
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": DV,
        "eagle_aux_hidden_state_layer_ids": None,
        "norm_before_residual": True,
        "norm_before_fc": False,
        "speculators_model_type": "eagle3",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "/somebody/elses/path"}},
        "target_hidden_size": None,
        "transformer_layer_config": nested | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    } | more


def half(tensors: Tensors) -> Tensors:
    return {name: t.half() if t.is_floating_point() else t for name, t in tensors.items()}


def write(folder: Path, config: dict[str, Any] | None, tensors: Any, name: str = "pytorch_model.bin") -> Path:
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def same(got: Tensors, wanted: Tensors) -> None:
    """Same tensors; ``wanted`` by published names."""
    renamed = {
        name.removeprefix("model.").removeprefix("midlayer.").removeprefix("layers.0."): t for name, t in wanted.items()
    }
    renamed = {name.removeprefix("self_attn.").removeprefix("mlp."): tensor for name, tensor in renamed.items()}
    left_out = ("d2t", "t2d", "embed_tokens.weight")
    assert sorted(got) == sorted(n for n in renamed if n not in left_out)
    assert all(
        torch.equal(tensor, renamed[name]) and tensor.dtype == renamed[name].dtype for name, tensor in got.items()
    )


def loads(config: EagleConfig, weights: Tensors) -> None:
    EagleHead(config).load_state_dict(weights)  # strict


# ------------------------------------------------------------------------------------------------------------ layouts


@pytest.mark.parametrize("bias", [True, False])
def test_eagle_1(tmp_path: Path, bias: bool) -> None:
    tensors = first(bias)
    read = read_eagle(write(tmp_path, llama(num_hidden_layers=32), tensors), *TARGET)
    assert read.config == EagleConfig(H, MLP, HEADS, KV, DIM, H, (L,), V, version=1, fc_bias=bias)
    assert (read.layout, read.vocab) == ("eagle-1", None)
    assert read.embedding is not None
    assert torch.equal(read.embedding, tensors["embed_tokens.weight"])
    same(read.weights, tensors)
    loads(read.config, read.weights)


def test_eagle_3_as_published(tmp_path: Path) -> None:
    tensors = half(third()) | maps()
    read = read_eagle(write(tmp_path, llama(draft_vocab_size=DV), tensors), *TARGET)
    assert read.config == EagleConfig(H, MLP, HEADS, KV, DIM, H, (2, 6, 9), V, DV)
    assert read.config.rope_theta == 10000  # never the target's
    assert read.layout == "eagle-3"
    assert read.embedding is None
    assert read.vocab is not None
    assert read.vocab.tolist() == list(range(1, V, 4))
    assert read.vocab.dtype == torch.int64
    same(read.weights, tensors)
    loads(read.config, read.weights)


def test_specforge(tmp_path: Path) -> None:
    extras = norms("fc_norm.0", "fc_norm.1", "fc_norm.2") | norms(
        "midlayer.self_attn.q_norm", "midlayer.self_attn.k_norm", size=DIM
    )
    tensors = third() | maps() | extras
    settings = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": DV,
        "head_dim": DIM,
        "rope_theta": 1e6,
        "norm_output": True,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8], "use_aux_hidden_state": True},
    }
    read = read_eagle(write(tmp_path, llama(**settings), tensors, "model.safetensors"), *TARGET)
    assert read.layout == "specforge"
    assert read.config.layers == (2, 6, 9)  # there, 1 is the layer whose output is read
    assert (read.config.rope_theta, read.config.rope_factor) == (1e6, 4.0)
    assert read.config.norm_output
    assert read.config.fc_norm
    assert read.config.qk_norm
    same(read.weights, tensors)
    loads(read.config, read.weights)


@pytest.mark.parametrize("prefix", ["midlayer.", "layers.0.", "model.layers.0."])
@pytest.mark.parametrize("before", [True, False])
def test_speculators(tmp_path: Path, prefix: str, before: bool) -> None:
    tensors = third(prefix) | maps() | {"embed_tokens.weight": torch.randn(V, H)} | norms("input_norm", size=3 * H)
    config = speculators(norm_before_residual=before, norm_before_fc=True, eagle_aux_hidden_state_layer_ids=[1, 5, 8])
    read = read_eagle(write(tmp_path, config, tensors, "model.safetensors"), *TARGET)
    assert read.layout == "speculators"
    assert read.config.layers == (1, 5, 8)  # there, n is hidden_states[n]
    assert read.config.norm_before_residual is before
    assert read.config.input_norm
    assert read.config.rope_theta == 5e5
    assert read.embedding is not None
    same(read.weights, tensors)
    loads(read.config, read.weights)


@pytest.mark.parametrize("own_head", [True, False])
def test_whole_vocabulary_without_maps(tmp_path: Path, own_head: bool) -> None:
    tensors = third("model.layers.0.", V if own_head else None)
    config = llama(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=None)
    read = read_eagle(write(tmp_path, config, tensors, "model.safetensors"), *TARGET)
    assert read.config.draft_vocab_size == (V if own_head else None)  # None: the target's LM head
    assert read.vocab is None
    same(read.weights, tensors)
    loads(read.config, read.weights)


def test_maps_of_a_whole_vocabulary_say_nothing(tmp_path: Path) -> None:
    unused = {"d2t": torch.zeros(V, dtype=torch.long), "t2d": torch.zeros(3)}
    folder = write(tmp_path, llama(draft_vocab_size=V, num_hidden_layers=40), third(rows=V) | unused)
    read = read_eagle(folder, *TARGET)
    assert (read.vocab, read.config.draft_vocab_size) == (None, V)


def test_attention_biases_and_dynamic_scaling(tmp_path: Path) -> None:
    biases = {f"midlayer.self_attn.{n}_proj.bias": torch.randn(KV * DIM if n != "q" else H) for n in "qkv"}
    settings = {"qkv_bias": True, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "draft_vocab_size": DV}
    read = read_eagle(write(tmp_path, llama(**settings), third() | maps() | biases), *TARGET)
    assert read.config.attention_bias
    assert read.config.rope_factor == 1.0
    loads(read.config, read.weights)


def test_shards(tmp_path: Path) -> None:
    tensors = third() | maps()
    half_way = len(tensors) // 2
    places = {name: f"model-{int(i >= half_way)}.safetensors" for i, name in enumerate(tensors)}
    for shard in sorted(set(places.values())):
        write(tmp_path, llama(draft_vocab_size=DV), {n: t for n, t in tensors.items() if places[n] == shard}, shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    same(read_eagle(tmp_path, *TARGET).weights, tensors)
    index.write_text(json.dumps({"weight_map": places | {"more": "model-0.safetensors"}}))
    with pytest.raises(SpecdemoError, match=r"do not list the same tensors: more"):
        read_tensors(tmp_path)
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(SpecdemoError, match=r"model-1.safetensors is missing, but .*index.json lists it"):
        read_tensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../../elsewhere.safetensors"}}))
    with pytest.raises(SpecdemoError, match="no weight_map from tensors to files beside it"):
        read_tensors(tmp_path)


HYDRA = {"grounded_heads": True, "hydra_head_arch": "prefix-mlp", "hydra_num_heads": 3, "hydra_num_layers": 4}
BASE = {"num_attention_heads": HEADS, "num_key_value_heads": KV, "rms_norm_eps": 1e-5, "rope_theta": 5e4}


def hydra(dropout: bool, heads: int = 3, layers: int = 4) -> Tensors:
    torch.manual_seed(2)
    place: Callable[[int], int] = (lambda j: 2 * j + 1) if dropout else (lambda j: j)
    tensors: Tensors = {"input_embed_fn.weight": torch.randn(V, H)}
    for i in range(heads):
        tied = torch.randn(H, H), torch.randn(H)
        for j in range(layers):
            parts = ("linear", "res_connection") if j == 0 else ("linear",)
            for part in parts:
                name = f"hydra_mlp.{i}.{place(j)}.{part}"
                tensors[f"{name}.weight"] = tied[0] if j else torch.randn(H, (i + 2) * H)
                tensors[f"{name}.bias"] = tied[1] if j else torch.randn(H)
        head = f"hydra_lm_head.{i}.1" if dropout else f"hydra_lm_head.{i}"
        tensors |= {f"{head}.weight": torch.randn(V, H), f"{head}.bias": torch.randn(V)}
    return tensors


def prefix() -> Tensors:
    name = "prefix_embeding_layer."
    more = norms(*(f"{name}{n}" for n in ("norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm")))
    table = {
        f"{name}layers.0.self_attn.rotary_emb.inv_freq": torch.randn(2),
        f"{name}embed_tokens.weight": torch.randn(V, H),
    }
    return layer(f"{name}layers.0.", H) | more | table


def test_hydra_prefix_mlp(tmp_path: Path) -> None:
    tensors = hydra(dropout=True) | prefix()
    folder = write(tmp_path, HYDRA | {"hidden_state_offset": 0}, tensors, "hydra_lm_head.pt")
    read = read_hydra(folder, H, V, BASE)
    assert read.config == HydraConfig(H, 3, 4, True, MLP, HEADS, KV, 1e-5, 5e4, V, True)
    assert read.embedding is not None
    assert torch.equal(read.embedding, tensors["input_embed_fn.weight"])
    gone = ("embed_tokens", "input_embed", "inv_freq", ".5.", ".7.")
    assert sorted(read.weights) == sorted(n for n in tensors if not any(part in n for part in gone))
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read.weights.items())


@pytest.mark.parametrize("biases", [True, False])
def test_hydra_mlp_reads_under_the_same_names(tmp_path: Path, biases: bool) -> None:
    tensors = hydra(dropout=False)
    if not biases:
        tensors = {n: t for n, t in tensors.items() if not (n.startswith("hydra_lm_head") and n.endswith("bias"))}
    read = read_hydra(write(tmp_path, HYDRA | {"hydra_head_arch": "mlp"}, tensors, "hydra_lm_head.pt"), H, V)
    assert read.config == HydraConfig(H, 3, 4, False, 0, 0, 0, 0.0, 0.0, V, True)
    wanted = {n for n in hydra(dropout=True) if n.startswith("hydra") and not any(p in n for p in (".5.", ".7."))}
    assert read.weights.keys() == wanted
    assert torch.equal(read.weights["hydra_mlp.1.3.linear.weight"], tensors["hydra_mlp.1.1.linear.weight"])
    assert torch.equal(read.weights["hydra_lm_head.2.1.weight"], tensors["hydra_lm_head.2.weight"])
    assert biases or not read.weights["hydra_lm_head.2.1.bias"].any()


def medusa(heads: int = 5) -> Tensors:
    torch.manual_seed(4)
    blocks = {
        f"{i}.0.linear.{n}": torch.randn(*s) for i in range(heads) for n, s in (("weight", (H, H)), ("bias", (H,)))
    }
    return blocks | {f"{i}.1.weight": torch.randn(V, H) for i in range(heads)}


def test_medusa_believes_the_file_about_its_heads(tmp_path: Path) -> None:
    config = {"base_model_name_or_path": "x", "medusa_num_heads": 2, "medusa_num_layers": 1}
    read = read_medusa(write(tmp_path, config, half(medusa()), "medusa_lm_head.pt"), H, V)
    assert read.config == MedusaConfig(H, 5, 1, V)
    assert all(torch.equal(read.weights[name], tensor.half()) for name, tensor in medusa().items())


# -------------------------------------------------------------------------------------------------------------- sizes


def test_sizes_are_those_of_the_published_files() -> None:
    llama_8b = EagleConfig(4096, 14336, 32, 8, 128, 4096, (2, 16, 29), 128256, 32000)
    vicuna_13b = EagleConfig(5120, 13824, 40, 40, 128, 5120, (2, 20, 37), 32000, 32000)
    assert eagle_bytes(llama_8b, with_maps=True, with_embedding=False) == 849_763_584
    assert eagle_bytes(vicuna_13b, with_maps=False, with_embedding=False) == 1_276_682_240
    assert eagle_bytes(vicuna_13b, with_maps=False, with_embedding=True) == 1_276_682_240 + 2 * 32000 * 5120
    assert hydra_bytes(HydraConfig(4096, 4, 4, True, 11008, 32, 32, 1e-6, 1e4, 32000)) == 3_051_735_040
    assert hydra_bytes(HydraConfig(5120, 4, 4, True, 13824, 40, 40, 1e-6, 1e4, 32000)) == 4_278_599_680


def test_computed_size_is_the_size_on_disk(tmp_path: Path) -> None:
    tensors = half(third() | {"embed_tokens.weight": torch.randn(V, H)}) | maps()
    read = read_eagle(write(tmp_path, llama(draft_vocab_size=DV), tensors), *TARGET)
    assert eagle_bytes(read.config, True, True) == sum(t.numel() * t.element_size() for t in tensors.values())


# -------------------------------------------------------------------------------------------------------- corruptions


def change(name: str, tensor: Tensor | None) -> Callable[[Tensors], Tensors]:
    def changed(tensors: Tensors) -> Tensors:
        kept = {n: t for n, t in tensors.items() if n != name}
        return kept if tensor is None else kept | {name: tensor}

    return changed


def permuted(tensors: Tensors) -> Tensors:
    ids = tensors["d2t"] + torch.arange(DV)
    return tensors | {"d2t": ids[torch.tensor([0, 1, 3, 2, *range(4, DV)])] - torch.arange(DV)}


def other_ids(tensors: Tensors) -> Tensors:
    return tensors | {"d2t": torch.arange(DV) * 4 + 2 - torch.arange(DV)}


def nan(tensors: Tensors) -> Tensors:
    spoilt = tensors["midlayer.mlp.up_proj.weight"].clone()
    spoilt[3, 5] = float("nan")
    return tensors | {"midlayer.mlp.up_proj.weight": spoilt}


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (change("midlayer.hidden_norm.weight", None), r"missing: midlayer\.hidden_norm\.weight\."),
        (change("lm_head.weight", None), r"missing: lm_head\.weight"),
        (change("d2t", None), r"missing: d2t"),
        (change("midlayer.extra", torch.ones(2)), r"unexpected: midlayer\.extra"),
        (change("layers.1.mlp.up_proj.weight", torch.ones(2)), r"unexpected: layers\.1\.mlp\.up_proj\.weight"),
        (change("midlayer.self_attn.o_proj.bias", torch.ones(H)), r"unexpected: midlayer\.self_attn\.o_proj\.bias"),
        (change("model.norm.weight", torch.ones(H)), r"a tensor twice: norm\.weight, model\.norm\.weight"),
        (change("embed_tokens.weight", torch.tensor(1.0)), r"embed_tokens\.weight \[\] instead of \[40, 16\]"),
        (change("midlayer.self_attn.q_proj.weight", torch.tensor(1.0)), r"q_proj\.weight \[\] instead of \[16, 32\]"),
        (change("norm.weight", torch.ones(H + 1)), r"wrong shape: norm\.weight \[17\] instead of \[16\]"),
        (change("lm_head.weight", torch.ones(V, H)), r"lm_head\.weight \[40, 16\] instead of \[10, 16\]"),
        (change("t2d", torch.ones(V - 1).bool()), r"t2d \[39\] instead of \[40\]"),
        (permuted, r"d2t is out of order at row 3 \(token 9 after 13\)"),
        (other_ids, r"t2d marks other tokens than d2t"),
        (change("d2t", torch.full((DV,), V - DV + 1)), r"d2t leads to token 40, outside the target's vocabulary of 40"),
        (change("d2t", torch.full((DV,), -1)), r"d2t leads to token -1, outside"),
        (change("d2t", maps()["d2t"].to(torch.bfloat16)), r"d2t holds bfloat16 where token ids are whole numbers"),
        (nan, r"midlayer\.mlp\.up_proj\.weight holds NaN or infinity"),
        (change("lm_head.weight", torch.full((DV, H), float("inf"))), r"lm_head\.weight holds NaN or infinity"),
        (change("norm.weight", torch.ones(H).to(torch.int8)), r"norm\.weight holds int8; quantised"),
        (change("fc.weight", torch.ones(H, 3 * 20)), r"reads 60 numbers .* at \[2, 6, 9\] have 48\. .* another target"),
        (change("embed_tokens.weight", torch.ones(V + 8, H)), r"a vocabulary of 48 tokens, the target's has 40"),
    ],
)
def test_a_corrupt_file_is_refused_by_name(tmp_path: Path, corrupt: Callable[[Tensors], Tensors], message: str) -> None:
    folder = write(tmp_path, llama(draft_vocab_size=DV), corrupt(third() | maps()))
    with pytest.raises(SpecdemoError, match=message) as caught:
        read_eagle(folder, *TARGET)
    assert "pytorch_model.bin" in str(caught.value)


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    tensors = change("norm.weight", None)(third("layers.0.") | maps()) | {"a": torch.ones(1), "b": torch.ones(1)}
    tensors |= {"layers.0.hidden_norm.weight": torch.ones(3)}
    with pytest.raises(
        SpecdemoError, match=r"missing: norm.weight; unexpected: a, b; .* layers.0.hidden_norm.weight \[3\]"
    ):
        read_eagle(write(tmp_path, llama(draft_vocab_size=DV), tensors), *TARGET)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, r"rope_scaling is of type 'yarn'"),
        ({"rope_scaling": 4}, r"rope_scaling is 4; it must be a JSON object"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0.5"),
        ({"rms_norm_eps": "small"}, r"rms_norm_eps is 'small'"),
        ({"hidden_act": "gelu"}, r"hidden_act 'gelu'"),
        ({"num_attention_heads": None}, r"num_attention_heads is missing"),
        ({"num_key_value_heads": 3}, r"num_key_value_heads does not divide"),
        ({"intermediate_size": "24"}, r"intermediate_size is '24'; it must be a whole number"),
        ({"vocab_size": 50}, r"a vocabulary of 50 tokens, the target's has 40"),
        ({"target_hidden_size": 20}, r"target_hidden_size 20.* made for another target"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 6, L]}, r"layers \[2, 6, 12\] .* has layers 0 to 11"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, r"without auxiliary hidden states"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 6]}, r"reads 48 numbers .* at \[2, 6\] have 32"),
        ({"hidden_size": 10**30}, r"hidden_size is 10+; it must be a whole number from 1 to"),
        ({"architectures": 4, "draft_vocab_size": True}, r"draft_vocab_size is True"),
        ({"fc_norm": True}, r"missing: fc_norm\.0\.weight, fc_norm\.1\.weight, fc_norm\.2\.weight"),
        ({"attention_bias": True}, r"missing: midlayer\.self_attn\.k_proj\.bias, midlayer\.self_attn\.q_proj\.bias"),
        ({"speculators_model_type": "dflash"}, r"speculators head of type 'dflash'"),
        ({"speculators_model_type": "eagle3"}, r"needs transformer_layer_config and norm_before_residual"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    config = llama(draft_vocab_size=DV) | settings
    with pytest.raises(SpecdemoError, match=message):
        read_eagle(write(tmp_path, config, third() | maps()), *TARGET)


def test_an_eagle_1_head_of_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdemoError, match=r"reads 16 numbers .* at \[12\] have 32"):
        read_eagle(write(tmp_path, llama(), first()), L, 2 * H, V)
    with pytest.raises(SpecdemoError, match=r"missing: fc\.bias"):
        read_eagle(write(tmp_path, llama(bias=True), first(bias=False)), *TARGET)


def test_a_head_of_another_size_needs_its_own_embedding(tmp_path: Path) -> None:
    tensors = third(rows=None) | {"fc.weight": torch.randn(H, 3 * 20)}
    with pytest.raises(SpecdemoError, match=r"missing: embed_tokens\.weight, lm_head\.weight"):
        read_eagle(write(tmp_path, llama(draft_vocab_size=V), tensors), L, 20, V)


def cut(path: Path, keep: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("keep", [0, 0.5, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, keep: float) -> None:
    write(tmp_path, llama(draft_vocab_size=DV), third() | maps(), name)
    cut(tmp_path / name, keep)
    with pytest.raises(
        SpecdemoError, match=rf"{name} is damaged or was not downloaded completely .* Download it again"
    ):
        read_eagle(tmp_path, *TARGET)


def test_an_old_pickle_is_read_and_a_truncated_one_refused(tmp_path: Path) -> None:
    tensors, path = third() | maps(), tmp_path / "pytorch_model.bin"
    write(tmp_path, llama(draft_vocab_size=DV), {})
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
    same(read_eagle(tmp_path, *TARGET).weights, tensors)
    cut(path, 0.9)
    with pytest.raises(SpecdemoError, match="is damaged"):
        read_tensors(tmp_path)


class Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "hydra_lm_head.pt", "medusa_lm_head.pt"])
def test_code_in_a_pickle_is_not_run(tmp_path: Path, name: str) -> None:
    ran = tmp_path / "ran"
    write(tmp_path, {}, third() | {"code": Code(ran)}, name)
    with pytest.raises(
        SpecdemoError, match=rf"{name} holds more than tensors: .* which was not run \(.*mkdir.*\)"
    ) as caught:
        read_tensors(tmp_path)
    assert "weights_only" not in str(caught.value)  # torch's advice to switch it off
    assert not ran.exists()
    torch.load(tmp_path / name, weights_only=False)
    assert ran.exists()  # it would have run


@pytest.mark.parametrize("content", [[torch.ones(2)], {"state_dict": {"a": torch.ones(2)}}, {1: torch.ones(2)}])
def test_a_pickle_of_something_else_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(SpecdemoError, match=r"pytorch_model.bin is not a dictionary of names and tensors"):
        read_tensors(write(tmp_path, {}, content))


def test_a_pointer_is_told_from_a_file(tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "model.safetensors"):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
        with pytest.raises(SpecdemoError, match=rf"{name} is a Git LFS pointer"):
            read_tensors(tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecdemoError, match=r"config.json is missing"):
        read_eagle(write(tmp_path, None, third()), *TARGET)
    with pytest.raises(SpecdemoError, match=r"is not a folder"):
        read_eagle(tmp_path / "pytorch_model.bin", *TARGET)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecdemoError, match=r"config.json cannot be read as JSON"):
        read_eagle(tmp_path, *TARGET)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SpecdemoError, match=r"config.json is not a JSON object"):
        read_eagle(tmp_path, *TARGET)
    (tmp_path / "pytorch_model.bin").rename(tmp_path / "training_args.bin")
    with pytest.raises(SpecdemoError, match=r"has no weights: none of model.safetensors, .*medusa_lm_head.pt"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("settings", "corrupt", "message"),
    [
        ({"hydra_head_arch": "eagle-attn"}, dict, r"hydra_head_arch is 'eagle-attn'; only .* 'prefix-mlp' or 'mlp'"),
        ({"grounded_heads": False}, dict, r"grounded_heads is False"),
        ({"hidden_state_offset": 1}, dict, r"hidden_state_offset is 1"),
        ({"hydra_num_heads": 4}, dict, r"missing: hydra_lm_head\.3\.1\.bias"),
        ({"hydra_num_heads": 10**9}, dict, r"hydra_num_heads is 1000000000; it must be a whole number from 1 to 64"),
        ({"hydra_num_layers": 1}, dict, r"unexpected: hydra_mlp\.0\.3\.linear\.bias"),
        ({}, change("hydra_mlp.1.7.linear.weight", torch.ones(H, H)), r"hydra_mlp\.1\.7\.linear\.weight differs"),
        ({}, change("prefix_embeding_layer.norm.weight", None), r"missing: prefix_embeding_layer\.norm\.weight"),
        ({}, change("hydra_lm_head.0.1.bias", None), r"missing: hydra_lm_head\.0\.1\.bias"),
        ({}, change("input_embed_fn.weight", torch.ones(V + 1, H)), r"input_embed_fn\.weight \[41, 16\] instead"),
        ({}, change("hydra_lm_head.0.1.bias", torch.full((V,), float("nan"))), r"hydra_lm_head\.0\.1\.bias holds NaN"),
        ({}, change("hydra_mlp.0.1.linear.weight", torch.ones(20, 40)), r"hidden states of 20 numbers, .* have 16"),
    ],
)
def test_a_corrupt_hydra_head_is_refused(
    tmp_path: Path, settings: dict[str, Any], corrupt: Callable[[Tensors], Tensors], message: str
) -> None:
    folder = write(tmp_path, HYDRA | settings, corrupt(hydra(dropout=True) | prefix()), "hydra_lm_head.pt")
    with pytest.raises(SpecdemoError, match=message):
        read_hydra(folder, H, V, BASE)


def test_a_prefix_layer_of_unknown_heads_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, HYDRA, hydra(dropout=True) | prefix(), "hydra_lm_head.pt")
    with pytest.raises(SpecdemoError, match="num_attention_heads is missing"):
        read_hydra(folder, H, V)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (change("3.1.weight", None), r"missing: 3\.1\.weight"),
        (change("0.1.linear.weight", torch.ones(H, H)), r"unexpected: 0\.1\.linear\.weight"),
        (change("4.1.weight", torch.ones(V, H + 1)), r"4\.1\.weight \[40, 17\] instead of \[40, 16\]"),
        (change("0.0.linear.weight", torch.ones(20, 20)), r"hidden states of 20 numbers, the target's have 16"),
        (lambda tensors: {}, r"has no heads"),
    ],
)
def test_a_corrupt_medusa_head_is_refused(tmp_path: Path, corrupt: Callable[[Tensors], Tensors], message: str) -> None:
    folder = write(tmp_path, {"medusa_num_layers": 1}, corrupt(medusa()), "medusa_lm_head.pt")
    with pytest.raises(SpecdemoError, match=message):
        read_medusa(folder, H, V)


# ------------------------------------------------------------------------------------------- where heads come from


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert fetch(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("source", ["/no/such/folder", "word", "a/b/c", __file__])
def test_neither_folder_nor_repository(source: str) -> None:
    with pytest.raises(SpecdemoError, match="is not a folder, and not the name of a Hub repository"):
        fetch(source)


@pytest.mark.parametrize("has_safetensors", [True, False])
def test_pickles_are_downloaded_only_where_there_is_nothing_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_safetensors: bool
) -> None:
    calls: list[tuple[str, str | None, list[str]]] = []

    def download(repo: str, revision: str | None, allow_patterns: list[str]) -> str:
        calls.append((repo, revision, allow_patterns))
        if has_safetensors:
            (tmp_path / "model.safetensors").touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert fetch("someone/some-head", "v1") == tmp_path
    assert [call[:2] for call in calls] == [("someone/some-head", "v1")] * (1 if has_safetensors else 2)
    assert "pytorch_model.bin" not in calls[0][2]
    assert has_safetensors or {"config.json", "pytorch_model.bin", "hydra_lm_head.pt"} <= set(calls[1][2])


def test_a_failed_download_has_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, **options: Any) -> str:
        raise OSError("404 Client Error.\n\nRepository Not Found\nmany lines")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(
        SpecdemoError, match=r"a/b could not .* \(404 Client Error\)\. Check its name .* give the folder"
    ):
        fetch("a/b")


def test_a_foreign_tokenizer_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    target = AutoTokenizer.from_pretrained(tiny_model)
    check_vocabulary(target, tmp_path)  # without one there is nothing to compare
    path = tmp_path / "tokenizer.json"
    path.write_bytes((tiny_model / "tokenizer.json").read_bytes())
    check_vocabulary(target, tmp_path)
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    words["!"], words['"'] = words['"'], words["!"]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(
        SpecdemoError, match=r"another tokenizer: token \d+ is '!' in the target's vocabulary and '\"' in"
    ):
        check_vocabulary(target, tmp_path)
    cut(path, 0.5)
    with pytest.raises(SpecdemoError, match=r"tokenizer in .* cannot be read"):
        check_vocabulary(target, tmp_path)
