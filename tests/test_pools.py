from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdemo.drafters import DRAFTERS
from specdemo.pools import load_pool, offered_pools, pool_names, read_pool
from specdemo.types import Message, Request, SpecdemoError

GOOD = """
title = "Mine"
[target]
source = "embedded"
[[arms]]
name = "copy"
family = "prompt-lookup"
colour = ["#0072B2", "#56b4e9"]
k = 3
options = { longest = 4 }
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_default_pool_comes_first() -> None:
    assert pool_names() == ["embedded", "copying", "self-draft", "smollm2-1.7b", "vicuna-7b", "llama3.1-8b", "qwen3-8b"]


def test_pools_for_gpus_are_offered_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert offered_pools() == ["embedded", "copying", "self-draft"]
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    assert offered_pools() == pool_names()


@pytest.mark.parametrize("name", pool_names())
def test_shipped_pools_name_what_exists_and_can_be_told_apart(name: str) -> None:
    pool = read_pool(name)
    assert pool.title != name
    for arm in pool.arms:
        assert set(arm.options) <= set(DRAFTERS[arm.family].options)
        assert arm.domain
    for page in (0, 1):
        assert len({arm.colour[page] for arm in pool.arms}) == len(pool.arms)


def test_a_pool_file_by_path(tmp_path: Path) -> None:
    pool = read_pool(write(tmp_path, GOOD))
    (arm,) = pool.arms
    assert (pool.name, pool.title, pool.target.source) == ("mine", "Mine", "embedded")
    assert (arm.name, arm.family, arm.k, dict(arm.options)) == ("copy", "prompt-lookup", 3, {"longest": 4})
    assert arm.colour == ("#0072B2", "#56b4e9")
    assert read_pool(str(write(tmp_path, '[target]\nsource = "embedded"', "bare.toml"))).arms == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("title =", "titel ="), "the file has an unknown key 'titel'. It may have: title, target, arms, gpu"),
        (("[target]", "[[target]]"), "target of the file is .* it must be a table"),
        (('source = "embedded"', ""), r"\[target\] lacks the key 'source'"),
        (('source = "embedded"', 'source = "embedded"\ndevice = "cpu"'), r"\[target\] has an unknown key 'device'"),
        (('name = "copy"', ""), r"\[\[arms\]\] number 1 lacks the key 'name'"),
        (('name = "copy"', "name = 3"), "name of .* is 3; it must be a string"),
        (("k = 3", "k = true"), "k of .* is True; it must be a whole number"),
        (("k = 3", "k = -1"), "k of .* is -1; a draft length is at least 0"),
        (("k = 3", "weight = 3"), "unknown key 'weight'. It may have: name, family, domain, colour, k, options"),
        (('"#0072B2", ', ""), "colour of .* it must be two"),
        (("#0072B2", "blue"), "colour of .* it must be two"),
        (("title", "= title"), "cannot be read"),
    ],
)
def test_mistakes_name_file_key_and_what_is_allowed(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    with pytest.raises(SpecdemoError, match=message) as caught:
        read_pool(write(tmp_path, GOOD.replace(*change)))
    assert "mine.toml" in str(caught.value)


def test_arms_of_one_name_are_refused(tmp_path: Path) -> None:
    twice = GOOD + '[[arms]]\nname = "copy"\nfamily = "suffix"\n'
    with pytest.raises(SpecdemoError, match="two arms have the same name"):
        read_pool(write(tmp_path, twice))


@pytest.mark.parametrize("name", ["nothing", "missing.toml", "", "../pools/embedded"])
def test_unknown_pool(name: str) -> None:
    with pytest.raises(SpecdemoError, match=r"There is no pool .* Choose one of: embedded, copying, self-draft"):
        read_pool(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("prompt-lookup", "telepathy"),
            "unknown family 'telepathy'. There are: prompt-lookup, suffix, causal_lm, eagle",
        ),
        (("longest", "length"), "unknown option 'length'. Family 'prompt-lookup' may have: longest, shortest"),
    ],
)
def test_unknown_family_and_option_are_found_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], message: str
) -> None:
    monkeypatch.setattr("specdemo.models.embedded_model", lambda progress: pytest.fail("fetched"))
    with pytest.raises(SpecdemoError, match=message):
        load_pool(write(tmp_path, GOOD.replace(*change)))


def test_loaded_pool_tells_where_it_comes_from(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    pool = load_pool("copying", dtype="float32", device="cpu")
    assert [arm.name for arm in pool.arms] == ["prompt-lookup", "suffix", "suffix-session"]
    assert pool.info["dtype"] == "float32"
    assert pool.info["device"] == "cpu"
    assert pool.info["target"] == f"folder {tiny_model}"
    assert pool.info["target_path"] == str(tiny_model)
    assert pool.info["threads"] >= 1
    json.dumps(dict(pool.info))
    again = load_pool("copying", dtype="float32", device="cpu")
    assert again.info["hash"] == pool.info["hash"]


def test_loaded_pool_generates(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specdemo.engine import generate

    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    pool = load_pool("self-draft", dtype="float32", device="cpu")
    asked = Request(messages=(Message("user", "hi"),), selector="fixed", k=3, max_new_tokens=8, ignore_eos=True)
    rounds = list(generate(asked, pool))
    assert [r.accepted for r in rounds] == [3, 3]  # the target agrees with itself


def test_folders_are_relative_to_the_file_and_their_contents_part_of_the_hash(
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    (tmp_path / "big").symlink_to(tiny_model)
    small = tmp_path / "small"
    small.mkdir()
    for path in tiny_model.iterdir():
        (small / path.name).write_bytes(path.read_bytes())
    text = (
        GOOD.replace('"embedded"', '"big"')
        .replace("prompt-lookup", "causal_lm")
        .replace("longest = 4", 'model="small"')
    )
    path = write(tmp_path, text)
    first = load_pool(path, dtype="float32", device="cpu").info
    assert set(first["weights"]) == {"target", "copy"}
    (small / "generation_config.json").write_text("{}")
    second = load_pool(path, dtype="float32", device="cpu").info
    assert first["weights"]["target"] == second["weights"]["target"]
    assert first["hash"] != second["hash"]
    write(tmp_path, text + "\n")
    assert load_pool(path, dtype="float32", device="cpu").info["hash"] != second["hash"]


def test_an_arm_that_cannot_be_loaded_is_named(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in tiny_model.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["!"], vocabulary['"'] = vocabulary['"'], vocabulary["!"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    text = GOOD.replace('"embedded"', json.dumps(str(tiny_model)))
    text = text.replace("prompt-lookup", "causal_lm").replace("longest = 4", 'model="other"')
    with pytest.raises(SpecdemoError, match=r"mine.toml: arm 'copy' cannot be loaded: .* token \d+ is '!'"):
        load_pool(write(tmp_path, text), dtype="float32", device="cpu")


def test_a_target_that_is_no_model_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecdemoError, match="empty"):
        load_pool(write(tmp_path, '[target]\nsource = "empty"'))
