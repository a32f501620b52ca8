"""A random Llama of 64 dimensions in a GGUF file like the embedded model's: a small stand-in for downloads."""

from __future__ import annotations

import zipfile
from hashlib import sha256
from pathlib import Path

import numpy as np

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ Ġ", "Ġ t", "h e", "Ġt he"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 4, 2, 96, 2


def write_gguf(path: Path, pre: str = "smollm") -> Path:
    """Write the model, quantised to Q4_1 like the real one, with random weights of a fixed seed."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize
    from tokenizers.pre_tokenizers import ByteLevel

    writer = GGUFWriter(path, "llama")
    tokens = SPECIAL + sorted(ByteLevel.alphabet()) + [m.replace(" ", "") for m in MERGES]
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(0)
    for name, shape in _shapes(len(tokens)).items():
        value = rng.normal(0, 0.2, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, value)
        else:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(name, quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(path: Path, gguf_name: str) -> str:
    """Write a wheel that holds the model under ``gguf_name``; returns its sha256."""
    gguf = write_gguf(path.with_suffix(".gguf"))
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, gguf_name)
    gguf.unlink()
    return sha256(path.read_bytes()).hexdigest()


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "ffn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INNER, HIDDEN),
        "ffn_up": (INNER, HIDDEN),
        "ffn_down": (HIDDEN, INNER),
    }
    layers = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in layer.items()}
    return {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,), **layers}
