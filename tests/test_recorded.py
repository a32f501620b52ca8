"""Recorded worlds: what is recorded is what really happens, and simulation on it is what the engine would do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdemo.drafters import DRAFTERS
from specdemo.engine import generate
from specdemo.evaluation import recorder
from specdemo.evaluation.prompts import Prompt
from specdemo.evaluation.recorded import BLOCKS, Recorded, Recording, load, save
from specdemo.evaluation.simulate import Setting, simulate, table
from specdemo.evaluation.tape import contender
from specdemo.evaluation.texts import tapes
from specdemo.types import Arm, Message, Pool, Request, SpecdemoError
from tests import heads, tiny

K = 3


def answer(name: str, domain: str, runs: list[list[int]], acceptance: list[list[float]] | None = None) -> Recorded:
    """Costs: a forward 10 ms, drafts of arm i (i + 1) ms a token, an evaluation 2 ms and half a one per position."""
    made = np.array(runs)
    arms = np.arange(1, made.shape[1] + 1)
    shown = (made > 0).astype(float) if acceptance is None else np.array(acceptance)
    draft, evaluation = np.array([arms * 1.0, arms * K]), 2 + 0.5 * np.array(BLOCKS)
    return Recorded(name, domain, np.array([1, 2]), np.arange(len(made)), made, shown, draft, 10.0, evaluation)


def world(*answers: Recorded, **more: int) -> Recording:
    arms = answers[0].runs.shape[1]
    names = tuple("abc"[:arms])
    return Recording("pool", "hash", K, names, ("x",) * arms, (K,) * arms, list(answers), **more)


HAND = answer("1", "code", [[r, 0] for r in (2, 1, 0, 3, 2, 1, 0)])  # arm a: blocks 3, 4; arm b: never


def test_rounds_regret_and_costs_by_hand() -> None:
    found = {r.selector: r for r in simulate(world(HAND, HAND), ("fixed:arm=a", "fixed:arm=b", "none"), 99, 2, K)}
    best, worst, plain = found["fixed:arm=a"], found["fixed:arm=b"], found["none"]
    assert (best.regret_mean, worst.regret_mean, plain.regret_mean) == (0, 5, 5)
    assert best.tokens_per_round == pytest.approx(7 / 2)
    assert best.tokens_per_second == pytest.approx(1000 * 7 / (13 + 13))  # drafts of 3
    # the last token is the target's own, and drafts end before it: lengths 3 3 3 3 2 1 0
    assert worst.tokens_per_second == pytest.approx(1000 * 7 / (7 * 10 + 2 * (3 * 4 + 2 + 1)))
    assert plain.tokens_per_second == pytest.approx(100)
    assert best.gain == pytest.approx(0)
    assert (best.best_arm_share, worst.best_arm_share) == (1, 0)
    assert "tokens/s" in table([best])


def test_evaluations_are_charged_by_position() -> None:
    """Arm b alone, seven rounds: evaluated after every round but the last, six times one position."""
    never = answer("1", "code", [[0]] * 7)
    (found,) = simulate(world(never, never), ("hedgespec",), 99, 2, K)
    drafts = 3 * 4 + 2 + 1
    assert found.tokens_per_second == pytest.approx(1000 * 7 / (70 + drafts + 6 * 2.5))


def test_selectors_are_told_how_far_drafts_fall_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teacher forcing says 1 everywhere, drafts get one token: the second depth is worth next to nothing."""
    text = answer("1", "code", [[1]] * 60 + [[0]], [[1.0]] * 61)
    (tape,) = tapes(Setting(world(text), (), 99, K, "soft"), [0])
    heard = []
    selector = tape._selector(contender("speed"), K)
    update = selector.update
    monkeypatch.setattr(selector, "update", lambda f: (heard.append(f), update(f)))
    tape._rounds(selector, K)
    assert heard[-1].calibration[0, 0] == pytest.approx(1, abs=0.05)
    assert heard[-1].calibration[0, 1] < 0.5
    assert selector.draft_length(0) == 1


def test_two_answers_in_turns() -> None:
    other = answer("2", "sql", [[0, 3]] * 7)
    (tape,) = tapes(Setting(world(HAND, other, alternate=3), (), 99, K, "soft"), [0])
    assert len(tape.text.runs) == 14
    assert tape.text.runs[:, 0].tolist() == [2, 1, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]  # runs end with their piece
    assert tape.text.runs[:, 1].tolist() == [0, 0, 0, 2, 1, 0, 0, 0, 0, 2, 1, 0, 0, 0]
    assert (tape.text.mean.argmax(1)[:9] == [0] * 3 + [1] * 3 + [0] * 3).all()
    with pytest.raises(SpecdemoError, match="of one domain"):
        simulate(world(HAND, HAND, alternate=3), ("none",), 9, 2, K)


def test_files(tmp_path: Path) -> None:
    save(world(HAND, HAND), tmp_path / "w.npz")
    again = load(tmp_path / "w.npz")
    assert again.names == ("a", "b")
    assert (again.answers[1].runs == HAND.runs).all()
    assert again.answers[0].verify_ms == 10
    assert again.evaluation_ms() == pytest.approx((2, 0.5))
    (tmp_path / "text.npz").write_text("no archive")
    for name in ("text.npz", "nothing.npz"):
        with pytest.raises(SpecdemoError, match="specdemo evaluate record"):
            load(tmp_path / name)
    with pytest.raises(SpecdemoError, match="at least two"):
        simulate(world(HAND), ("none",), 9, 2, K)


@pytest.fixture
def recordable(tmp_path: Path) -> Pool:
    """A tiny target with a head, heads of another family, and a drafter that copies."""
    target = tiny.target()
    target.tokenizer.hf.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    made = []
    for family in ("eagle", "hydra", "prompt-lookup"):
        start = DRAFTERS[family].load(target, **heads.options(family, tmp_path))
        made.append(Arm(family, family, start, k=2 if family == "hydra" else None))
    return Pool("tiny", target, tuple(made), {"hash": "x"})


def test_what_is_recorded_is_what_the_engine_does(tmp_path: Path, recordable: Pool) -> None:
    """The rounds of every fixed arm, in the recorded world and really; and a second call records nothing again."""
    prompts = [Prompt("p1", "code", ("w5 w6 w7 w5 w6",)), Prompt("p2", "sql", ("w9 w11 w9",))]
    made = recorder.record(recordable, prompts, K, 24, tmp_path / "w.npz", tmp_path / "a.jsonl")
    before = (tmp_path / "w.npz").read_bytes()
    again = recorder.record(recordable, prompts, K, 24, tmp_path / "w.npz", tmp_path / "a.jsonl")
    assert (tmp_path / "w.npz").read_bytes() == before
    assert [a.id for a in again.answers] == ["p1", "p2"]
    assert np.isfinite(made.round_ms()).all()
    assert set(np.unique(made.answers[0].acceptance)) <= {0.0, 1.0}
    for i, prompt in enumerate(prompts):
        (tape,) = tapes(Setting(made, (), 99, K, "soft"), [i])
        for arm in recordable.arms:
            asked = Request(messages=(Message("user", prompt.prompt),), selector="fixed", options={"arm": arm.name})
            real = list(generate(replace(asked, k=K, max_new_tokens=24), recordable))
            assert tape.play(contender(f"fixed:arm={arm.name}")).rounds == len(real)
    with pytest.raises(SpecdemoError, match="another k"):
        recorder.record(recordable, prompts, K + 1, 24, tmp_path / "w.npz", tmp_path / "a.jsonl")


def test_costs_that_nobody_measured_are_not_taken_for_nothing(tmp_path: Path) -> None:
    """Answers that end before there was a draft of K tokens, or an evaluation of eight positions; none at all."""
    short = np.array([np.nan, 2.0])[:, None] * np.ones((2, 2))
    for less in (replace(HAND, draft_ms=short), replace(HAND, evaluation_ms=np.array([2.5, 3, 4, np.nan]))):
        with pytest.raises(SpecdemoError, match="too short"):
            simulate(world(less, less), ("none",), 9, 2, K)
        assert world(less, HAND).evaluation_ms() == pytest.approx((2, 0.5))  # one that tells is enough
    with pytest.raises(SpecdemoError, match="The 0 recorded answers"):
        replace(world(HAND), answers=[]).round_ms()
    with pytest.raises(SpecdemoError, match="alternate is -3"):
        load(tmp_path / "w.npz", -3)


def test_somebody_has_to_draft(tmp_path: Path, recordable: Pool) -> None:
    for made, k in ((recordable, 0), (replace(recordable, arms=()), K)):
        with pytest.raises(SpecdemoError, match="takes one of each"):
            recorder.record(made, [], k, 24, tmp_path / "w.npz", tmp_path / "a.jsonl")
