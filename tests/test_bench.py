"""bench.py: the numbers are what their names say."""

from __future__ import annotations

import json

import pytest

from specdemo import bench, costs
from specdemo.drafters import DRAFTERS
from specdemo.drafters.bank import BankRun
from specdemo.selectors import SELECTORS
from specdemo.types import Arm, Pool
from tests import heads, tiny


def test_a_bench_is_json_and_a_table() -> None:
    target = tiny.target()
    result = bench.run_bench(target, ns=(1, 2, 6), repeats=3, tokens=8)
    assert json.loads(json.dumps(result))["plain"]["prompts"] == len(bench.PROMPTS)
    assert [r["n"] for r in result["verify_curve"]] == [1, 2, 6]
    assert result["verify_curve"][0]["v"] == 1
    assert result["plain"]["identical"] == len(bench.PROMPTS)  # float64: both write the same
    assert result["plain"]["interval"][0] <= result["plain"]["ratio"] <= result["plain"]["interval"][1]
    text = bench.table(result)
    assert "paired ratio" in text
    assert "eager" in text


def test_selectors_are_timed_with_the_feedback_they_ask_for() -> None:
    """A selector that learns takes time to do so; one that does not takes none."""
    found = costs.selector_costs(arms=5, rounds=20)
    assert set(found) == set(SELECTORS) - {"router"}
    assert min(found["hedgespec"]["update"], found["speed"]["update"], found["ucbspec"]["update"]) > 0
    assert found["random"]["update"] == found["none"]["update"] == 0
    assert min(cost["choose"] for cost in found.values()) > 0
    assert len(costs.selectors_table(found)) == 2 + len(found)


def test_feedback_and_drafts_are_ratios_to_a_forward(tmp_path) -> None:
    target = tiny.target()
    folder = str(heads.bank(tmp_path / "bank"))
    arms = [
        Arm(str(i), "eagle", DRAFTERS["eagle"].load(target, model=folder, member=name, nodes=nodes), nodes=nodes)
        for i, (name, nodes) in enumerate((("all", 0), ("some", 0), ("some", 6)))
    ]
    found = json.loads(json.dumps(costs.drafting_costs(Pool("x", target, tuple(arms)), k=3, context=20, repeats=3)))
    assert list(found["draft"]) == ["0", "1", "2"]
    assert {name: cost["arms"] for name, cost in found["feedback"].items()} == {"heads": 2, "everybody": 3}
    assert all(cost["ratio"] > 0 < cost["ms"] for part in ("draft", "feedback") for cost in found[part].values())
    assert len(costs.costs_table(found)) == 2 + 3 + 2


def test_no_team_is_timed_with_what_another_has_judged(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members of a bank, alone and with another arm: a forward of the bank for each team in each round."""
    target, folder = tiny.target(), str(heads.bank(tmp_path / "bank"))
    load = lambda family, **options: DRAFTERS[family].load(target, **options)  # noqa: E731
    arms = [Arm(name, "eagle", load("eagle", model=folder, member=name)) for name in ("all", "some")]
    forwards, run = list[slice](), BankRun._run
    monkeypatch.setattr(BankRun, "_run", lambda self, *args: (forwards.append(args[0]), run(self, *args))[1])
    pool = Pool("x", target, (*arms, Arm("copy", "prompt-lookup", load("prompt-lookup"))))
    costs.drafting_costs(pool, k=1, block=4, context=20, repeats=2)
    assert len([here for here in forwards if here.stop - here.start == 4 + 1]) == 2 * 3  # and the next position


def test_the_model_is_left_as_it_was() -> None:
    target = tiny.target()
    before = target.model.config._attn_implementation, target.model.generation_config.eos_token_id
    bench.plain_speed(target, prompts=("w5",), tokens=4)
    assert (target.model.config._attn_implementation, target.model.generation_config.eos_token_id) == before


def test_medians_and_ratios_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([1.0, 2.0, 10.0, 30.0, 1.0, 2.0])
    monkeypatch.setattr(bench, "timed", lambda action: next(times))
    one, two = bench.verify_curve(tiny.target(), ns=(1, 2), repeats=3, context=8)
    assert (one["median_ms"], one["min_ms"]) == (1, 1)
    assert (two["median_ms"], two["min_ms"], two["v"]) == (2, 2, 2)


def test_bootstrap_of_a_constant_is_that_constant() -> None:
    assert bench.bootstrap([2.0, 2.0, 2.0]) == (2.0, 2.0)
    low, high = bench.bootstrap([1.0, 2.0, 3.0, 4.0, 5.0])
    assert 1 <= low < 3 < high <= 5
