"""Tiny random transformers models and a small tokenizer, made on the spot."""

from __future__ import annotations

import copy

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast

from specdemo.target import HFTarget

# Trained models' 0.02 would make these ones deaf: without training, the last token alone decides the next one then,
# and a cache that is off by one goes unnoticed.
SPREAD = 0.4


def tokenizer(size: int = 64, swap: tuple[int, int] | None = None) -> PreTrainedTokenizerFast:
    """``size`` words "w0" ... with w0 unknown, w1 beginning and w2 end; ``swap`` exchanges two ids."""
    ids = list(range(size))
    if swap:
        ids[swap[0]], ids[swap[1]] = ids[swap[1]], ids[swap[0]]
    inner = Tokenizer(models.WordLevel({f"w{i}": ids[i] for i in range(size)}, unk_token="w0"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.WhitespaceSplit(), decoders.WordPiece(prefix="##")
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="w0", bos_token="w1", eos_token="w2")


def llama(
    vocab: int = 64, seed: int = 0, window: int = 512, dtype: torch.dtype = torch.float64, hidden_size: int = 32
) -> LlamaForCausalLM:
    """A random Llama whose every token depends on all before it."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden_size, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=window, bos_token_id=1, eos_token_id=2, pad_token_id=2,
        initializer_range=SPREAD,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def mistral(window: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64) -> MistralForCausalLM:
    """A random Mistral that sees ``window`` tokens."""
    torch.manual_seed(seed)
    config = MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, sliding_window=window, bos_token_id=1, eos_token_id=2,
        initializer_range=SPREAD,
    )  # fmt: skip
    return MistralForCausalLM(config).to(dtype).eval()


def target(model: torch.nn.Module | None = None, size: int = 64, swap: tuple[int, int] | None = None) -> HFTarget:
    """A tiny target, Llama unless a model is given."""
    return HFTarget(llama() if model is None else model, tokenizer(size, swap), name="tiny")


def plain(model: torch.nn.Module, prompt: list[int], n: int, **kwargs: object) -> list[int]:
    """What ``transformers.generate`` writes greedily, with the model's own cache and attention."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": n, "do_sample": False, "pad_token_id": 2, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad():
        return model.generate(ids, **(options | kwargs))[0, len(prompt) :].tolist()
