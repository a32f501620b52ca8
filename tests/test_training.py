"""Training on the tiny target: what is kept, what is learned, and that it can be interrupted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from specdemo.drafters import DRAFTERS
from specdemo.engine import generate
from specdemo.training import distil, heads, recipes
from specdemo.training.features import LAW, extract, frequent, load, read_corpus
from specdemo.training.heads import Corpus, Frozen, Recipe, Teacher, eagle_states, step
from specdemo.training.writer import Task, Writer
from specdemo.types import Arm, Message, Pool, Request, SpecdemoError
from tests import tiny
from tests.fakes import tokens_of

CHAT = "{% for m in messages %}w3 {{ m['content'] }} w4 {% endfor %}"
LEARNT = Message("user", "w43 w9 w41")  # a prompt of the corpus whose greedy answer was trained on
QUICK = Recipe(positions=256, batch=64, length=32, steps=2, lr=3e-3)


@pytest.fixture(scope="module")
def target():
    words = tiny.tokenizer()
    words.chat_template = CHAT
    return tiny.HFTarget(tiny.llama(dtype=torch.float32), words, name="tiny")


@pytest.fixture(scope="module")
def corpus(target, tmp_path_factory) -> Path:
    """Texts of the target itself, two domains."""
    folder = tmp_path_factory.mktemp("corpus")
    for domain, first in (("code", 5), ("sql", 40)):
        prompts = [f"w{first + i % 9} w{7 + i % 5} w{first + i // 9}" for i in range(20)]
        distil.distil(domain, 20, target, folder, prompts, batch=8, progress=False)
    return folder


@pytest.fixture(scope="module")
def features(target, corpus, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("features")
    extract(corpus, folder, target, (0, 1, 2), progress=False)
    return folder


def answers(path: Path) -> dict[tuple[str, bool], dict]:
    return {(row["prompt"], row["sample"]): row for row in map(json.loads, path.read_text().splitlines())}


def test_answers_are_the_targets_greedy_ones_or_sampled(target, corpus) -> None:
    """Every prompt twice, whatever was written beside it and in whichever order answers were complete."""
    rows, model = answers(corpus / "code.jsonl"), tiny.llama(dtype=torch.float32)
    assert len(rows) == 40
    for i in (0, 7, 14):
        row = rows[f"w{5 + i % 9} w{7 + i % 5} w{5 + i // 9}", False]
        prompt = target.tokenizer.encode(Request(messages=(Message("user", row["prompt"]),)))
        assert row["gen"] == tiny.plain(model, prompt, len(row["gen"]))
    assert sum(row["gen"] != rows[prompt, not sample]["gen"] for (prompt, sample), row in rows.items()) > 10
    assert len({len(row["gen"]) for row in rows.values()}) > 5  # rows were freed and taken again


def test_an_answer_does_not_depend_on_what_is_written_beside_it(target) -> None:
    """Prompts of many lengths, more of them than rows; one prompt is a single token, one leaves no room."""
    tasks = [Task((3, *range(5, 5 + n), 9)[: n + 1], temperature=0.8 * (n % 2), seed=n) for n in range(12)]
    tasks.append(Task((3,) * 60))
    together = dict(Writer(target, 5, 40, 16).write(tasks))
    assert sorted(together) == list(range(12))
    for n in range(12):
        assert dict(Writer(target, 1, 40, 16).write([tasks[n]]))[0] == together[n], n
    again = dict(Writer(target, 5, 40, 16).write([replace(t, seed=t.seed + 1) for t in tasks]))
    assert all((again[n] == together[n]) == (n % 2 == 0) for n in range(12))


def test_an_end_token_ends_an_answer_and_frees_its_row(target) -> None:
    endless = tiny.HFTarget(tiny.llama(dtype=torch.float32), target.tokenizer.hf, name="tiny")
    endless.eos = frozenset()
    (text,) = (answer for _, answer in Writer(endless, 1, 40, 16).write([Task((3, 5, 6))]))
    assert len(text) == 16
    end = text[7]
    endless.eos = frozenset({end})
    written = dict(Writer(endless, 2, 40, 16).write([Task((3, 5, 6))] * 3))
    assert list(written.values()) == [text[: text.index(end) + 1]] * 3


def test_writing_goes_on_where_it_was(target, corpus, tmp_path) -> None:
    """Also after a kill in the middle of a line."""
    whole, path = (corpus / "code.jsonl").read_text(), tmp_path / "code.jsonl"
    prompts = [f"w{5 + i % 9} w{7 + i % 5} w{5 + i // 9}" for i in range(20)]
    kept = whole.splitlines()[:16]
    path.write_text("".join(line + "\n" for line in kept) + '{"prompt": "w5 w')
    distil.distil("code", 20, target, tmp_path, prompts, batch=8, progress=False)
    assert path.read_text().splitlines()[:16] == kept
    assert answers(path) == answers(corpus / "code.jsonl")


def test_features_are_the_targets_own_states_and_laws(target, corpus, features) -> None:
    texts, kept = read_corpus(corpus / "sql.jsonl", target), load(features, "sql")
    reference = tiny.llama(dtype=torch.float32)
    assert kept.layers == (0, 1, 2)
    among = frequent([read_corpus(corpus / f"{d}.jsonl", target) for d in ("code", "sql")], 64, 10_000)
    for i in (0, 7, 39):
        here = slice(int(kept.starts[i]), int(kept.starts[i + 1]))
        assert kept.tokens[here].tolist() == list(texts[i].tokens)
        assert kept.answers[here].tolist() == [j >= texts[i].answer for j in range(len(texts[i].tokens))]
        with torch.no_grad():
            out = reference(torch.tensor([texts[i].tokens]), output_hidden_states=True)
        assert torch.allclose(kept.hidden[here], torch.cat(out.hidden_states, -1)[0], atol=1e-4)
        top = torch.softmax(out.logits[0][:, among], -1).topk(LAW)
        assert torch.equal(kept.ids[here].long(), among[top.indices])
        assert torch.allclose(kept.law[here].float(), top.values, atol=2e-3)


def test_held_out_texts_are_never_trained_on(features) -> None:
    kept = load(features, "code")
    train, held = (Corpus({"code": kept}, (0, 1, 2), held_out=flag) for flag in (False, True))
    assert len(train.starts) + len(held.starts) == 40
    assert not set(train.starts.tolist()) & set(held.starts.tolist())
    assert len(train.starts) == int((~kept.held_out).sum())


def test_the_ready_made_gradient_is_that_of_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5, 8, dtype=torch.float64, generator=generator, requires_grad=True)
    rows = torch.randn(12, 8, dtype=torch.float64, generator=generator)
    columns = torch.stack([torch.randperm(12, generator=generator)[:4] for _ in range(5)])
    law = torch.softmax(torch.randn(5, 4, dtype=torch.float64, generator=generator), -1)
    weight = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0], dtype=torch.float64)
    loss, top = Frozen.apply(states, rows, columns, law, weight, True)
    (3 * loss).backward()
    again = states.detach().clone().requires_grad_(True)
    dense = torch.zeros(5, 12, dtype=torch.float64).scatter_(1, columns, law)
    wanted = (F.cross_entropy(again @ rows.T, dense, reduction="none") * weight).sum()
    (3 * wanted).backward()
    assert float(loss.detach()) == pytest.approx(float(wanted.detach()))
    assert torch.allclose(states.grad, again.grad, atol=1e-9)
    assert torch.equal(top, (states @ rows.T).argmax(-1))


def test_what_is_drafted_is_compared_with_what_follows(target, features) -> None:
    """An oracle whose states are the target's own scores everything; one that is a position off does not."""
    kept = load(features, "sql")
    corpus = Corpus({"sql": kept}, (0, 1, 2), held_out=False)
    index, document = corpus.rows(torch.arange(len(corpus.starts)), 32)
    rows = corpus.gather(index, document)
    teacher = Teacher.of(target.embedding, target.lm_head, torch.arange(64))
    last = rows.features[..., -32:]

    exact = lambda rows, embedding, steps: [last[:, 1 + s :] for s in range(steps)]  # noqa: E731
    _, hits = step(exact, rows, teacher, 3)
    assert min(hits) > 0.99
    wrong = lambda rows, embedding, steps: [last[:, s:-1] for s in range(steps)]  # noqa: E731
    assert max(step(wrong, rows, teacher, 3)[1]) < 0.5


def test_a_head_learns_and_drafts(target, features, tmp_path) -> None:
    """From nothing to a bank that drafts through the engine, and a specialist on top of it."""
    bank = tmp_path / "bank"
    recipe = replace(QUICK, positions=80_000, batch=512, lr=1e-2)
    recipes.train_head(target, features, ["code", "sql"], bank, "all", recipe)
    recipes.train_specialist(target, features, ["sql"], bank, "sql", replace(recipe, positions=4096), 4, 40)
    recipes.train_head(
        target, features, ["sql"], tmp_path / "more", "on", replace(recipe, positions=512, lr=1e-5), bank
    )
    told = json.loads((bank / "config.json").read_text())["members"]
    assert told["sql"]["rank"] == 4
    assert told["all"]["trained"]["domains"] == ["code", "sql"]
    fresh = tiny.HFTarget(tiny.llama(dtype=torch.float32), target.tokenizer.hf, name="tiny")
    lengths = {}
    for name, folder in (("all", bank), ("sql", bank), ("on", tmp_path / "more")):
        arm = Arm(name, "eagle", DRAFTERS["eagle"].load(fresh, model=str(folder), member=name))
        request = Request(messages=(LEARNT,), selector="fixed", k=3, max_new_tokens=60)
        rounds = list(generate(request, Pool("x", fresh, (arm,))))
        lengths[name] = len(tokens_of(rounds)) / len(rounds)
    assert min(lengths.values()) > 1.3, lengths  # an untrained head keeps 1.0


def test_hydra_learns(target, features, tmp_path) -> None:
    recipes.train_hydra(
        target, features, ["sql"], tmp_path / "hydra", replace(QUICK, positions=60_000, batch=512, lr=1e-2, steps=1), 2
    )
    assert json.loads((tmp_path / "hydra" / "config.json").read_text())["trained"]["steps"] == 2  # one per head
    fresh = tiny.HFTarget(tiny.llama(dtype=torch.float32), target.tokenizer.hf, name="tiny")
    arm = Arm("h", "hydra", DRAFTERS["hydra"].load(fresh, model=str(tmp_path / "hydra")))
    request = Request(messages=(LEARNT,), selector="fixed", k=2, max_new_tokens=60)
    rounds = list(generate(request, Pool("x", fresh, (arm,))))
    assert len(tokens_of(rounds)) / len(rounds) > 1.2


def test_matrices_are_muons_and_everything_else_learns_more_slowly(target) -> None:
    head, delta = recipes.new_head(target, (0, 1, 2), 0), recipes.new_delta(recipes.new_head(target, (0, 1, 2), 0), 4)
    both, small = heads.Optimizer(head, QUICK), heads.Optimizer(delta, QUICK)
    for optimizer in (both, small):
        optimizer.set_lr(0.4)
    found = {type(part).__name__: part.param_groups[0] for part in both.parts}
    assert {p.ndim for p in found["Muon"]["params"]} == {2}
    assert {p.ndim for p in found["AdamW"]["params"]} == {1}
    assert (found["Muon"]["lr"], found["AdamW"]["lr"]) == (0.4, 0.1)
    assert [(type(part).__name__, part.param_groups[0]["lr"]) for part in small.parts] == [("AdamW", 0.1)]


def test_training_goes_on_where_it_was(target, features, tmp_path) -> None:
    """Interrupted after half, then resumed: as many positions, and better than the half."""
    kept = {"sql": load(features, "sql")}
    corpus = Corpus(kept, (0, 1, 2), held_out=False)
    teacher = Teacher.of(target.embedding, target.lm_head, torch.arange(64))
    head, path = recipes.new_head(target, (0, 1, 2), 0), tmp_path / "head.pt"

    class Interrupted(Exception):
        pass

    def stop(seen: int) -> None:
        if seen >= 128:
            raise Interrupted

    with pytest.raises(Interrupted):
        heads.train(head, eagle_states(head, None), corpus, teacher, QUICK, path, progress=False, every=stop)
    half = torch.load(path)["seen"]
    again = recipes.new_head(target, (0, 1, 2), 1)
    heads.train(again, eagle_states(again, None), corpus, teacher, QUICK, path, progress=False)
    assert 0 < half < QUICK.positions == torch.load(path)["seen"]
    heads.train(again, eagle_states(again, None), corpus, teacher, QUICK, path, progress=False)  # nothing left to do


def test_what_is_missing_is_named(target, tmp_path) -> None:
    with pytest.raises(SpecdemoError, match="no texts"):
        extract(tmp_path, tmp_path / "f", target, (0,), progress=False)
    with pytest.raises(SpecdemoError, match="no features of 'code'"):
        load(tmp_path, "code")
    (tmp_path / "code.jsonl").write_text('{"prompt": "w5"}\n')
    with pytest.raises(SpecdemoError, match=r"code.jsonl, line 1: a row needs prompt"):
        extract(tmp_path, tmp_path / "f", target, (0,), progress=False)
