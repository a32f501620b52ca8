"""Simulation: worlds are what they say, rounds are counted right, and the command prints what it promises."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specdemo.cli import main
from specdemo.evaluation.simulate import SELECTORS, Setting, outcomes, simulate, table
from specdemo.evaluation.tape import Tape, contender
from specdemo.evaluation.texts import synthetic
from specdemo.evaluation.worlds import WORLDS, Texts, World, write
from specdemo.types import SpecdemoError


def tape(bits: list[list[int]], rounds: int, k: int, **world: float) -> Tape:
    """The tape of one text given by its match bits [positions][arms]."""
    shown = np.array(bits, dtype=float)[None]
    made = World(arms=shown.shape[2], **world)  # type: ignore[arg-type]
    (only,) = synthetic(Setting(made, (), rounds, k, "bits"), made, Texts(shown, shown, shown > 0), [0])
    return only


# ----------------------------------------------------------------------------------------------------------- worlds


@pytest.mark.parametrize("name", WORLDS)
def test_acceptance_has_the_means_it_should_and_bits_follow_it(name: str) -> None:
    texts = write(World(name, arms=6), range(3), 3_000)
    assert texts.mean.shape == texts.soft.shape == texts.bits.shape == (3, 3_000, 6)
    assert 0 <= texts.soft.min() <= texts.soft.max() <= 1
    assert np.abs((texts.soft - texts.mean).mean(1)).max() < 0.03
    assert np.abs((texts.bits - texts.soft).mean(1)).max() < 0.04


def test_acceptance_is_a_beta_law_and_arms_are_correlated() -> None:
    """Concentration 2 at mean 0.6: variance 0.6 * 0.4 / 3."""
    soft = write(World(arms=8, gap=0.0), [0], 20_000).soft[0]
    assert soft.std(0) == pytest.approx(np.full(8, np.sqrt(0.08)), rel=0.05)
    correlation = np.corrcoef(soft.T)[np.triu_indices(8, 1)]
    assert 0.35 < correlation.min() < correlation.max() < 0.6


def test_worlds_do_what_they_are_named_after() -> None:
    mean = {name: write(World(name, arms=6), [1], 1_200).mean[0] for name in WORLDS}
    assert np.sort(mean["stationary"][7]) == pytest.approx([0.6] * 5 + [0.7])
    assert (mean["stationary"] == mean["stationary"][0]).all()
    best = mean["domains"].argmax(1)
    assert [len(set(best[s : s + 60])) for s in range(0, 1_200, 60)] == [1] * 20
    assert set(best) == set(best[:120])
    assert len(set(best)) == 2
    assert len(set(mean["changes"].argmax(1))) > 2
    assert np.abs(np.diff(mean["drift"], axis=0)).sum(0).min() > 0.05
    assert np.abs(np.diff(mean["drift"], axis=0)).max() < 0.002
    states = {tuple(row) for row in mean["markov"]}
    assert len(states) <= 4
    copying = mean["costs"][:, 0] > 0.9
    assert 0.1 < copying.mean() < 0.5
    assert mean["costs"][0, -1] == pytest.approx(0.87)


def test_a_text_does_not_depend_on_the_other_seeds() -> None:
    one, many = write(World(), [5], 100), write(World(), [3, 5], 100)
    assert (one.soft[0] == many.soft[1]).all()
    assert (one.bits[0] == many.bits[1]).all()


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({"name": "flat"}, "There is no world 'flat'. Choose one of: stationary"),
        ({"arms": 0}, "arms is 0"),
        ({"arms": 2, "name": "domains"}, "3 to 256"),
        ({"gap": 0.5}, "base and base \\+ gap must lie between"),
        ({"segment": 0}, "segment is 0"),
        ({"cost": (0.1, 0.2)}, "one for each of 21"),
        ({"cost": (-0.1,)}, "at least 0"),
    ],
)
def test_impossible_worlds_are_named(world: dict[str, object], message: str) -> None:
    with pytest.raises(SpecdemoError, match=message):
        World(**world)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- rounds


def test_a_round_accepts_the_leading_run_and_commits_one_token_more() -> None:
    """Arm 0, bits 1 1 0 1 1 1 1 0 .., K = 2: blocks of 3 (1 1 +0), 3 (1 1 +1), 2 (1 +0). Arm 1 never: 1, 1, 1."""
    text = tape([[b, 0] for b in (1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0)], rounds=3, k=2, cost=(0.08,))
    found = text.play(contender("fixed:arm=arm 0"))
    assert found.tokens == 8
    assert found.switches == 0
    assert found.cost == pytest.approx(3 * (1 + 2 * (0.08 + 0.02)) / 8)
    assert found.best_share == 1
    assert text.play(contender("fixed:arm=arm 1")).tokens == 3
    plain = text.play(contender("none"))
    assert (plain.tokens, plain.cost, plain.best_share) == (3, 1.0, 0.0)


def test_regret_counts_rounds_beyond_those_of_the_best_fixed_arm() -> None:
    """Arm 0 is always right: blocks of 3. Arm 1 is never: 6 rounds write 6 tokens, for which arm 0 needs 2 rounds."""
    text = tape([[1, 0]] * 40, rounds=6, k=2)
    found = text.play(contender("fixed:arm=arm 1"))
    assert found.regret == (1, 2, 2, 3, 4, 4)
    assert text.play(contender("oracle-static")).regret == (0,) * 6
    assert text.play(contender("round-robin")).switches == 5
    assert found.fixed_length == pytest.approx(3)


def test_evaluations_are_charged_when_they_are_due() -> None:
    text = tape([[0, 0]] * 40, rounds=6, k=2, cost=(0.0,), evaluation=0.5)
    assert text.play(contender("hedgespec")).cost == pytest.approx(1.04 + 0.5)
    assert text.play(contender("hedgespec:period=3")).cost == pytest.approx(1.04 + 0.5 / 3)


def test_oracles_bound_everybody() -> None:
    """The dynamic oracle writes more than any arm where arms take turns; the static one is the best fixed arm."""
    results = {r.selector: r for r in simulate(World("domains", arms=5), ("oracle-static", "oracle-dynamic"), 100, 4)}
    assert results["oracle-static"].regret_mean == 0
    assert results["oracle-dynamic"].regret_mean < -10
    assert results["oracle-dynamic"].best_arm_share > 0.95
    assert results["oracle-dynamic"].gain > 10


# ------------------------------------------------------------------------------------------------------------ results


def test_results_do_not_depend_on_processes_nor_on_company() -> None:
    asked = ("random", "hedgespec", "speed:k=3")
    alone, together = simulate(World(arms=4), asked, 40, 4), simulate(World(arms=4), asked, 40, 4, processes=2)
    for a, b in zip(alone, together, strict=True):
        assert {**a.to_dict(), "us_per_round": 0} == {**b.to_dict(), "us_per_round": 0}
    assert simulate(World(arms=4), ("hedgespec",), 40, 4)[0].regret == alone[1].regret


def test_intervals_are_of_the_mean_over_seeds() -> None:
    setting = Setting(World(arms=4), (contender("random"),), 60, 5, "soft")
    ends = np.array([o.regret[-1] for o in outcomes(setting, range(6))[0]])
    (result,) = simulate(World(arms=4), ("random",), 60, 6)
    assert result.regret_mean == pytest.approx(ends.mean())
    assert result.regret_high - result.regret_mean == pytest.approx(1.96 * ends.std(ddof=1) / np.sqrt(6))
    assert result.rounds[-1] == 60
    assert len(result.rounds) == len(result.regret) == len(result.regret_lows) == len(result.regret_highs) == 50


def test_bits_are_harder_than_soft_signals() -> None:
    soft, bits = (simulate(World(arms=8), ("hedgespec",), 100, 12, signal=s)[0] for s in ("soft", "bits"))
    assert soft.regret_mean < bits.regret_mean


def test_dear_evaluations_of_useless_arms_cost_next_to_nothing() -> None:
    """Three quarters of a forward for an evaluation, 13 arms that are no good, 120 rounds: within 3 % of plain."""
    world = World(arms=13, base=0.05, gap=0.0, cost=(0.1,), evaluation=0.75)
    paced, freely = simulate(world, ("speed", "speed:share=1.0:margin=0.0"), 120, 16, 5, "bits")
    assert freely.gain < -4 < -3 < paced.gain < 0


def test_twelve_selectors_are_compared_by_default() -> None:
    assert len(SELECTORS) == 12
    results = simulate(World(arms=21), rounds=40, seeds=2)
    assert [r.selector for r in results] == list(SELECTORS)
    assert all(np.isfinite([r.regret_mean, r.tokens_per_cost, r.gain]).all() for r in results)
    lines = table(results).splitlines()
    assert len(lines) == 13
    assert lines[1].startswith("random ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hedgespec:signal", "should be NAME=VALUE"),
        ("speed:k=0", "it must be at least 1"),
        ("speed:k=soon", "it must be at least 1"),
    ],
)
def test_contenders_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(SpecdemoError, match=message):
        contender(text)


def test_contenders() -> None:
    found = contender("hedgespec:signal=vr:discount=0.95:k=8")
    assert (found.name, found.options, found.k) == ("hedgespec", {"signal": "vr", "discount": 0.95}, 8)
    assert found.label == "hedgespec:signal=vr:discount=0.95:k=8"


# ------------------------------------------------------------------------------------------------------------ command


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    text = "--world stationary --arms 4 8 --gap 0.1 --rounds 30 --seeds 3 --selectors random,hedgespec"
    command = ["simulate", *text.split()]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(r["selector"], r["arms"]) for r in found] == [(s, n) for n in (4, 8) for s in ("random", "hedgespec")]
    wanted = {"regret_mean", "regret_low", "regret_high", "tokens_per_round", "switches", "best_arm_share", "regret"}
    assert all(wanted <= set(r) and r["regret_low"] <= r["regret_mean"] <= r["regret_high"] for r in found)
    assert main(command) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--world", "flat"], "There is no world 'flat'"),
        (["--selectors", "random,hedgehog"], "There is no selector 'hedgehog'"),
        (["--selectors", "hedgespec:luck=1"], "has no option 'luck'"),
        (["--seeds", "1"], "seeds is 1; it must be at least 2"),
        (["--rounds", "0"], "rounds is 0"),
        (["--k", "0"], "k is 0"),
    ],
)
def test_wrong_usage(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["simulate", "--rounds", "5", "--seeds", "2", "--arms", "3", *argv]) == 2
    assert message in capsys.readouterr().err
