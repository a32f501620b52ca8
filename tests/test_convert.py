from __future__ import annotations

import errno
from pathlib import Path

import pytest

from specdemo.convert import convert
from specdemo.types import SpecdemoError
from tests.tiny_gguf import SPECIAL, write_gguf


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert(write_gguf(folder.parent / "tiny.gguf"), folder, progress=False)
    return folder


def test_weights_are_those_transformers_reads(converted: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    ours = AutoModelForCausalLM.from_pretrained(converted).state_dict()
    theirs = AutoModelForCausalLM.from_pretrained(converted.parent, gguf_file="tiny.gguf", dtype=torch.float32)
    assert set(ours) == set(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours[name], value), name


def test_logits_are_those_of_transformers(converted: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(3, 40)[None]
    ours = AutoModelForCausalLM.from_pretrained(converted)(tokens).logits
    theirs = AutoModelForCausalLM.from_pretrained(converted.parent, gguf_file="tiny.gguf", dtype=torch.float32)
    assert torch.equal(ours, theirs(tokens).logits)


def test_tokenizer_splits_every_digit_off_and_is_reversible(converted: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    text = "the  12\n café 😀 <|im_end|>"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    # two spaces before a number stay together: the digit was split off before byte-level BPE saw them
    assert tokenizer.convert_ids_to_tokens(ids)[2:5] == ["ĠĠ", "1", "2"]
    assert ids[-1] == 2


def test_special_tokens_template_and_end(converted: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert [tokenizer.unk_token, tokenizer.bos_token, tokenizer.eos_token] == SPECIAL
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""
    text = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"
    assert GenerationConfig.from_pretrained(converted).eos_token_id == 2


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecdemoError, match=r"tokenizer\.ggml.pre = 'qwen2'"):
        convert(write_gguf(tmp_path / "other.gguf", pre="qwen2"), tmp_path, progress=False)


def test_full_disk_is_the_operating_systems_error(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    def full(*args: object, **kwargs: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        convert(converted.parent / "tiny.gguf", tmp_path, progress=False)
    assert caught.value.errno == errno.ENOSPC
