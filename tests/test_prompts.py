"""The held-out prompts in data/ are well-formed, and the training prompts are others than they."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterable
from pathlib import Path

import pytest

from specdemo.models import shipped
from specdemo.training import prompts
from specdemo.training.prompts import DOMAINS, write_prompts
from specdemo.types import SpecdemoError

DATA = shipped("data")
EXAMPLES = DATA / "examples.jsonl"
KEYS = {"mixed": {"parts"}, "twins": {"twin_of"}}
GENERATED = 2_000


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


FILES = {path.stem: read(path) for path in sorted(DATA.glob("*.jsonl")) if path != EXAMPLES}
ROWS = [row for rows in FILES.values() for row in rows]


def words(text: str) -> list[str]:
    """Lower-cased words; punctuation separates them, apostrophes do not."""
    text = re.sub(r"['’]", "", text.lower())
    return re.sub(f"[{re.escape(string.punctuation)}“”„«»¿¡–—…]", " ", text).split()


def runs(texts: Iterable[str], n: int = 8) -> set[tuple[str, ...]]:
    """All runs of n words of the texts."""
    return {tuple(found[i : i + n]) for found in map(words, texts) for i in range(len(found) - n + 1)}


def test_one_file_for_every_domain() -> None:
    assert set(FILES) == {*DOMAINS, "mixed", "twins"}


@pytest.mark.parametrize("name", FILES)
def test_rows_are_well_formed(name: str) -> None:
    assert len(FILES[name]) >= 20
    for row in FILES[name]:
        assert set(row) == {"id", "domain", "prompt"} | KEYS.get(name, set()), row["id"]
        assert str(row["id"]).startswith(f"{name.removesuffix('s') if name == 'twins' else name}-")
        assert row["domain"] in DOMAINS if name == "twins" else row["domain"] == name
        assert isinstance(row["prompt"], str)
        assert row["prompt"] == row["prompt"].strip() != ""


def test_ids_and_prompts_are_unique() -> None:
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert len({tuple(words(str(row["prompt"]))) for row in ROWS}) == len(ROWS)


def test_twins_have_originals_of_their_domain() -> None:
    domain_of = {row["id"]: row["domain"] for name in DOMAINS for row in FILES[name]}
    twins = FILES["twins"]
    assert all(domain_of.get(row["twin_of"]) == row["domain"] for row in twins)
    assert len({row["twin_of"] for row in twins}) == len(twins)


def test_mixed_prompts_change_domain() -> None:
    for row in FILES["mixed"]:
        parts = row["parts"]
        assert isinstance(parts, list)
        assert set(parts) <= set(DOMAINS), row["id"]
        assert len(set(parts)) == len(parts) >= 2, row["id"]


@pytest.mark.parametrize("name", ["rag", "summarisation"])
def test_passages_are_there(name: str) -> None:
    for row in FILES[name]:
        assert 60 <= len(words(str(row["prompt"]))) <= 180, row["id"]


@pytest.mark.parametrize("domain", DOMAINS)
def test_templates_are_many_distinct_and_deterministic(domain: str) -> None:
    frames, slots = prompts._templates(domain)
    assert len(set(frames)) == len(frames) >= 15
    for name, values in slots.items():
        assert values, name
    written = write_prompts(domain, 4_000)
    assert len(set(written)) == len(written) == 4_000
    assert write_prompts(domain, 100) == written[:100]
    assert write_prompts(domain, 100, seed=1) != written[:100]
    for prompt in written:
        assert prompt.strip()
        assert not prompts._SLOT.search(prompt), prompt


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_frame_can_be_filled_and_every_slot_is_used(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, slots = prompts._templates(domain)
    for frame in frames:
        monkeypatch.setattr(prompts, "_templates", lambda _, frame=frame: ([frame], slots))
        assert len(write_prompts(domain, 10)) == 10, frame
    own = {name: slots[name] for name in slots if name not in common_slots()}
    text = json.dumps([frames, slots])
    assert not [name for name in own if not re.search(rf"\{{\^?{name}[.:}}]", text)]


def common_slots() -> set[str]:
    return set(json.loads((Path(prompts.__file__).parent / "templates" / "common.json").read_text("utf-8"))["slots"])


@pytest.mark.parametrize("domain", DOMAINS)
def test_training_prompts_are_not_held_out_ones(domain: str) -> None:
    held_out = runs(str(row["prompt"]) for row in [*ROWS, *read(EXAMPLES)])
    written = write_prompts(domain, GENERATED)
    shared = runs(written) & held_out
    assert not shared, [" ".join(run) for run in shared]
    held_out_prompts = {tuple(words(str(row["prompt"]))) for row in [*ROWS, *read(EXAMPLES)]}
    assert not held_out_prompts & {tuple(words(prompt)) for prompt in written}  # also those shorter than a run


def test_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = {"a": ["x", "y"], "r": [{"one": "{a:k}", "many": ["p", "q"]}], "n": ["<{#7-7}>"]}
    frame = "{a}{a} {^a:k}{a:k}{r.one} {r.many}{r.many} {n}{#1-9:m}{#1-9:m} { {} {A} }"
    monkeypatch.setattr(prompts, "_templates", lambda _: ([frame], slots))
    for prompt in write_prompts("code", 20):
        assert re.fullmatch(r"(xy|yx) (Xxx|Yyy) (pq|qp) <7>([1-9])\4 \{ \{\} \{A\} \}", prompt)


def test_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert write_prompts("code", 0) == []
    with pytest.raises(SpecdemoError, match="no templates for the domain 'poetry'"):
        write_prompts("poetry", 1)
    with pytest.raises(SpecdemoError, match="at least 0"):
        write_prompts("code", -1)
    monkeypatch.setattr(prompts, "_templates", lambda _: (["{a} {#1-2}"], {"a": ["x", "y", "z"]}))
    assert len(write_prompts("code", 6)) == 6
    with pytest.raises(SpecdemoError, match="gave 6 different prompts, not 7"):
        write_prompts("code", 7)
