"""Regret against every fixed arm: by hand, against reruns, and as it is stored."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdemo.cli import main
from specdemo.drafters import causal_lm
from specdemo.engine import generate
from specdemo.evaluation.ledger import estimated, factors, text_table
from specdemo.evaluation.rerun import rerun
from specdemo.record import record
from specdemo.store import Store
from specdemo.types import Evaluated, Request, Sampling
from tests import tiny
from tests.fakes import FakeTarget, TableDrafter, arm, pool, table, tokens_of
from tests.traces import make_round, make_start

START = make_start(evaluated=("a", "b"), lengths=(2, 1), families=("x", "y"))
HAND = [  # a drafts 2 tokens, and its second falls behind; the text has 2 + 1 + 3 tokens; b sees bits 0 1 0 0 1 1
    make_round(0, (1, 2), 1, 9, arm=0, start=START, realised=(0.5, 0.1),
               evaluated=Evaluated(((0.5, 0.1), (0.5, 0.3)), ((0.5, 0.0), (1.0, 1.0)))),
    make_round(1, (3,), 0, 9, arm=1, realised=(0.2,)),  # waits ...
    make_round(2, (1, 2), 2, 9, arm=0, realised=(0.9, 0.7),  # ... until now
               evaluated=Evaluated(((0.8, 0.2),) * 4, ((0.5, 0.0), (0.25, 0.0), (1.0, 1.0), (1.0, 1.0)))),
]  # fmt: skip


def test_regret_by_hand() -> None:
    result = estimated(HAND)
    assert result is not None
    assert (result["kind"], result["rounds"], result["positions"], result["tokens"]) == ("estimated", 3, 6, 6)
    a, b, plain = (result["arms"][name] for name in ("a", "b", "plain"))
    # b, K = 1: (0)(1 0)(0)(1 1): four rounds, also calibrated: realised .2, estimated .2
    assert (b["rounds"], b["uncalibrated"], b["regret"]) == (pytest.approx(4), pytest.approx(4), pytest.approx(-1))
    assert (a["acceptance"], b["acceptance"]) == (pytest.approx(4.2 / 6), pytest.approx(1.2 / 6))
    # a, K = 2, p = (depth 0, 1, 2) before each position; rho = p2 + (1 - x)(p0 + p1):
    # x .5: (1, 0, 0) -> .5; x 1: (.5, .5, 0) -> 0; x .5: (0, .5, .5) -> .75; x .25: (.75, 0, .25) -> .8125
    # x 1: (.8125, .1875, 0) -> 0; and the round at the beginning
    assert a["uncalibrated"] == pytest.approx(1 + 0.5 + 0 + 0.75 + 0.8125 + 0)
    assert a["rounds"] > a["uncalibrated"]
    assert plain == {"rounds": 6.0, "regret": -3.0}
    assert (result["best"], result["regret"]) == ("a", pytest.approx(3 - a["rounds"]))
    assert text_table(result).splitlines()[2].split() == ["b", "4.0", "rounds", "-1.0"]


def test_factors_of_runs_by_hand() -> None:
    """Depth 0: .5 + .9 realised, .5 + .8 estimated (positions 0 and 3); depth 1: .1 + .7 of .5 + .8; s = 4."""
    family = np.array([(1.4 + 4) / (1.3 + 4), (0.8 + 4) / (1.3 + 4)])
    expected = [(1.4 + 4 * family[0]) / 5.3, (0.8 + 4 * family[1]) / 5.3]
    assert factors(START, [HAND])[0] == pytest.approx(expected)
    assert factors(START, [HAND, HAND])[0, 1] < expected[1]  # two runs weigh more
    assert factors(START, [HAND])[1] == pytest.approx([1, 1])
    assert factors(START, [HAND[:2]])[1] == pytest.approx([1, 1])  # that draft's position was not evaluated yet
    result = estimated(HAND, others=[HAND] * 50)
    known = estimated(HAND)
    assert result is not None
    assert known is not None
    assert result["arms"]["a"]["rounds"] > known["arms"]["a"]["rounds"]


def test_an_unfinished_run_is_compared_on_what_is_evaluated() -> None:
    result = estimated(HAND[:2])
    assert result is not None
    assert (result["rounds"], result["positions"], result["tokens"]) == (1, 2, 3)
    assert result["arms"]["a"]["uncalibrated"] == 1.5
    assert estimated([]) is None
    assert estimated([make_round(0, (1, 2), 1, 9)]) is None


def greedy_pool():
    target = tiny.target()
    return pool(target, *(arm(f"k{k}", causal_lm.for_model(target, other), k=k) for k, other in enumerate(others(), 1)))


def others():
    """The target itself, and models that mostly agree with it."""
    import torch

    made = []
    for i in range(3):
        model = tiny.llama()
        torch.manual_seed(i)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.05 * i)
        made.append(tiny.target(model))
    return made


@pytest.mark.parametrize(("selector", "tokens"), [("random", 24), ("random", 23), ("hedgespec", 22)])
def test_at_temperature_0_estimates_are_counts_of_really_rerun_rounds(selector: str, tokens: int) -> None:
    """Language models draft what teacher forcing says they do: every arm's rounds are equal, to the last one, from text
    that any selector wrote, also where the budget cuts the last round."""
    made = greedy_pool()
    asked = Request(prompt="w5 w9 w7", selector=selector, k=3, max_new_tokens=tokens, ignore_eos=True, shadow=True)
    rounds = list(generate(asked, made))
    ours, real = estimated(rounds), rerun(asked, made, rounds)
    assert ours is not None
    assert real["kind"] == "rerun"
    counts = [{name: row["rounds"] for name, row in result["arms"].items()} for result in (ours, real)]
    assert counts[0] == pytest.approx(counts[1])
    assert (ours["regret"], ours["best"]) == (pytest.approx(real["regret"]), real["best"])
    assert counts[1]["k1"] == (tokens + 1) // 2  # two tokens a round
    assert counts[1]["k1"] < counts[1]["k2"] < tokens  # neither perfect nor useless


def test_with_sampling_estimates_are_means_of_really_rerun_rounds() -> None:
    """Text written by every arm alone tells how many rounds every other arm takes, within 99 % intervals."""
    laws = [table(5, 0, scale=2.0), table(5, 7)]
    mixed = lambda c: [0.7 * x + 0.3 * y for x, y in zip(laws[0](c), laws[1](c), strict=True)]  # noqa: E731
    arms = [
        arm("mixed", lambda c: TableDrafter(mixed, "sample", c)),
        arm("other", lambda c: TableDrafter(laws[1], "sample", c)),
    ]
    made, n = pool(FakeTarget(laws[0], 5), *arms), 30
    told, real = {w: np.zeros((n, 2)) for w in range(2)}, np.zeros((n, 2))
    for writer, name in enumerate(("mixed", "other")):
        for seed in range(n):
            asked = Request(prompt="01", selector="fixed", options={"arm": name}, k=3, max_new_tokens=30, seed=seed,
                            ignore_eos=True, sampling=Sampling(temperature=1.0), shadow=True)  # fmt: skip
            rounds = list(generate(asked, made))
            real[seed, writer] = len(rounds)
            result = estimated(rounds)
            assert result is not None
            told[writer][seed] = [result["arms"][a]["uncalibrated"] for a in ("mixed", "other")]
    assert real[:, 1].mean() - real[:, 0].mean() > 3  # the arms differ
    for writer in range(2):
        for a in range(2):
            spread = np.sqrt(real[:, a].var(ddof=1) / n + told[writer][:, a].var(ddof=1) / n)
            assert abs(real[:, a].mean() - told[writer][:, a].mean()) < 2.58 * spread + 1e-9


def test_stored_with_the_run(tmp_path: Path) -> None:
    laws = [table(5, s) for s in range(3)]
    made = pool(
        FakeTarget(laws[0], 5), *(arm(f"d{i}", lambda c, law=laws[i]: TableDrafter(law, "sample", c)) for i in (1, 2))
    )
    asked = Request(prompt="01", selector="metasd-ucb", k=3, max_new_tokens=20, ignore_eos=True, shadow=True)
    with closing(Store(tmp_path / "runs.db")) as store:
        ids = [store.start_run(None, r, "fake", {}) for r in (asked, replace(asked, shadow=False))]
        rounds = list(record(generate(asked, made), store, ids[0]))
        list(record(generate(replace(asked, shadow=False), made), store, ids[1]))
        watched, alone = store.load_run(ids[0]), store.load_run(ids[1])
    assert watched is not None
    assert alone is not None
    assert watched.rounds == rounds
    assert watched.request == asked
    assert watched.regret == {"estimated": estimated(rounds)}
    assert alone.regret is None
    assert tokens_of(alone.rounds) == tokens_of(rounds)


def test_regret_on_the_command_line(tmp_path: Path, tiny_model: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    pool = tmp_path / "mine.toml"
    pool.write_text(
        '[target]\nsource = "embedded"\n[[arms]]\nname = "copy"\nfamily = "prompt-lookup"\n'
        '[[arms]]\nname = "self"\nfamily = "causal_lm"\n'
    )
    command = ["generate", "w5 w6", "--pool", str(pool), "--selector", "none", "--k", "3", "--max-new-tokens", "8"]
    command += ["--dtype", "float32", "--db", str(tmp_path / "runs.db"), "--ignore-eos"]
    assert main([*command, "--shadow", "--rerun", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for kind in ("estimated", "rerun"):
        assert found["regret"][kind]["kind"] == kind
        assert found["regret"][kind]["arms"]["self"]["rounds"] == pytest.approx(2)  # four tokens a round
        assert (found["regret"][kind]["best"], found["regret"][kind]["regret"]) == ("self", pytest.approx(6))
    with closing(Store(tmp_path / "runs.db")) as store:
        run = store.load_run(found["run_id"])
    assert run is not None
    assert run.regret == found["regret"]
    assert main([*command, "--shadow"]) == 0
    assert "estimated: 8 rounds for 8 tokens" in capsys.readouterr().err
    assert main([*command, "--shadow", "--no-calibrate", "--json"]) == 0
    run_id = json.loads(capsys.readouterr().out)["run_id"]
    with closing(Store(tmp_path / "runs.db")) as store:
        uncalibrated = store.load_run(run_id)
    assert uncalibrated is not None
    assert (uncalibrated.request.calibrate, uncalibrated.request.shadow) == (False, True)
    assert main([*command, "--json"]) == 0
    assert "regret" not in json.loads(capsys.readouterr().out)
