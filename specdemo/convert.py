"""A Llama-shaped GGUF file -> a folder that transformers loads: config, tokenizer, chat template, safetensors.

transformers can read GGUF files itself, but for this one it takes 20 s instead of 6, needs the quantisation marker
removed before saving, and drops the pre-tokeniser's splitting of digits, so that runs of spaces before a number become
other tokens than the model was trained on (docs/decisions/0003). The weights are bit-identical to what it reads
(held by a test). Quantised values are written as the float32 numbers they stand for, so nothing is lost.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specdemo.types import SpecdemoError

if TYPE_CHECKING:
    from gguf import GGUFReader
    from numpy.typing import NDArray

MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL = 3  # gguf's token type of special tokens


def convert(gguf_file: Path, folder: Path, progress: bool = True) -> None:
    """Write ``folder`` (which exists) from ``gguf_file``.

    Raises:
        SpecdemoError: the file is not a Llama-shaped GGUF with a smollm tokenizer.
        OSError: the disk is full or not writable.
    """
    from gguf import GGUFReader

    reader = GGUFReader(gguf_file)
    for key, wanted in (("general.architecture", "llama"), ("tokenizer.ggml.pre", "smollm")):
        if _field(reader, key) != wanted:
            raise SpecdemoError(f"{gguf_file} has {key} = {_field(reader, key)!r}; only {wanted!r} can be converted.")
    config = _config(reader)
    _write_json(folder / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ids)
    _write_tokenizer(reader, folder)
    _write_weights(reader, config, folder, progress)


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(reader: GGUFReader) -> dict[str, Any]:
    def get(key: str) -> Any:
        return _field(reader, key)

    names = {tensor.name for tensor in reader.tensors}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(get("tokenizer.ggml.tokens")),
        "hidden_size": get("llama.embedding_length"),
        "intermediate_size": get("llama.feed_forward_length"),
        "num_hidden_layers": get("llama.block_count"),
        "num_attention_heads": get("llama.attention.head_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        "max_position_embeddings": get("llama.context_length"),
        # single precision in the file: 9.9999997e-06 was written for 1e-05
        "rms_norm_eps": float(f"{get('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": float(get("llama.rope.freq_base")),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def _write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    """Byte-level BPE after splitting off every digit: the published pre-tokeniser of this model family."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id", "unk": "unknown_token_id"}
    named = {f"{role}_token": tokens[_field(reader, f"tokenizer.ggml.{key}")] for role, key in roles.items()}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    window = {"model_max_length": _field(reader, "llama.context_length")}
    _write_json(folder / "tokenizer_config.json", {**settings, **window, **named})
    (folder / "chat_template.jinja").write_text(_field(reader, "tokenizer.chat_template"), encoding="utf-8")


def _write_weights(reader: GGUFReader, config: dict[str, Any], folder: Path, progress: bool) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file
    from tqdm import tqdm

    bar = tqdm(_weights(reader, config), "converting", len(reader.tensors), unit="tensor", disable=not progress)
    weights = dict(bar)
    try:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:  # its own error for what the operating system refuses
        raise OSError(errno.ENOSPC if "os error 28" in str(error) else errno.EIO, str(error)) from error


def _weights(reader: GGUFReader, config: dict[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    from gguf.quants import dequantize

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for tensor in reader.tensors:
        *prefix, kind, _ = tensor.name.split(".")  # "blk.7.attn_q.weight" or "output_norm.weight"
        layer = f"model.layers.{prefix[1]}." if prefix else ""
        value = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if kind in heads:
            value = _half_rotation(value, heads[kind])
        yield f"{layer}{MODULES[kind]}.weight", np.ascontiguousarray(value)


def _half_rotation(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection in transformers' order: GGUF pairs rotated dimensions (2i, 2i+1), transformers
    pairs (i, i + d/2)."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[-1])
    rotated: NDArray[np.float32] = pairs.swapaxes(1, 2).reshape(weight.shape)
    return rotated
