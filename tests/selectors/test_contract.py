"""What every selector of the registry must do, whatever its rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specdemo.evaluation.simulate import Setting, outcomes
from specdemo.evaluation.tape import contender
from specdemo.evaluation.worlds import World
from specdemo.selectors import SELECTORS, make_selector, selector_options, summary
from specdemo.selectors.learners import LEARNERS
from specdemo.selectors.signals import SIGNALS
from specdemo.selectors.speed import Speed
from specdemo.training.router import train_router
from specdemo.types import RoundFeedback, Selector, SpecdemoError
from tests.selectors.worlds import make

RNG = np.random.default_rng
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in SELECTORS),
    *(("hedgespec", {"learner": learner}) for learner in LEARNERS if learner != "normalhedge"),
    *(("hedgespec", {"signal": signal, "choice": "argmax"}) for signal in SIGNALS),
    ("hedgespec", {"discount": 0.95, "signal": "vr", "period": 3}),
    ("hedgespec", {"form": "iw-b"}),
    ("hedgespec", {"form": "plug-in"}),
    ("speed", {"period": 3, "free_length": False}),
    ("speed", {"costs": False}),
    ("metasd-ucb", {"reward": "be"}),
]
LEARNING = [v for v in VARIANTS if v[0] not in ("router", "round-robin", "random", "fixed", "none")]


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("router") / "router.npz"
    train_router([[1, 2], [3, 4]], ["a0", "a1"], path, steps=5)
    return path


def build(name: str, options: dict[str, Any], arms: int, router: Path, seed: int = 0) -> Selector:
    if name == "router":
        options = {"model": str(router)}
    return make(name, arms=arms, seed=seed, **options)


def play(selector: Selector, arms: int, rounds: int, acceptance: Any) -> list[int]:
    """Rounds with given acceptances [positions, arms] of every round, told as the engine would."""
    picks, waiting, times = list[int](), list[np.ndarray](), np.tile(10.0 + np.arange(5), (arms, 1))
    for t in range(rounds):
        arm = selector.choose()
        assert -1 <= arm < arms
        assert arm < 0 or 0 <= selector.draft_length(arm) <= 4
        x = np.asarray(acceptance(t), dtype=float)
        accepted = min(4, int(x[:, max(0, arm)].sum()))
        waiting.append(x)
        told = None
        if selector.information == "full" and selector.due():
            told, waiting = np.concatenate(waiting), []
        divergence = float(x[:, arm].mean()) if selector.information == "bandit" else None
        selector.update(RoundFeedback(arm, 4, accepted, divergence, told, told, round_ms=times, feedback_ms=0.2))
        picks.append(arm)
    return picks


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_same_seed_same_choices(name: str, options: dict[str, Any], router: Path) -> None:
    xs = RNG(3).random((60, 3, 5))
    runs = [play(build(name, options, 5, router, seed=7), 5, 60, lambda t: xs[t]) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize("arms", [1, 2, 64])
def test_snapshots_are_json_whatever_the_number_of_arms(
    name: str, options: dict[str, Any], arms: int, router: Path
) -> None:
    selector, rng = build(name, options, arms, router), RNG(0)
    for rounds in (0, 1, 80):
        play(selector, arms, rounds, lambda t: rng.random((2, arms)))
        snapshot = selector.snapshot()
        json.dumps([snapshot.kind, snapshot.value, snapshot.estimate, snapshot.loss], allow_nan=False)
        assert snapshot.kind in ("weight", "index", "choice")
        assert [len(v) for v in (snapshot.value, snapshot.estimate, snapshot.loss)] == [arms] * 3
        assert all(type(v) is float for v in (*snapshot.value, *snapshot.estimate, *snapshot.loss) if v is not None)
        assert all(-1e-9 <= v <= 1 + 1e-9 for v in snapshot.loss if v is not None)
        if snapshot.kind == "weight":
            assert sum(v or 0 for v in snapshot.value) == pytest.approx(1)


@pytest.mark.parametrize(("name", "options"), [(n, o) for n, o in LEARNING if n != "hedgespec" or len(o) != 1])
@pytest.mark.parametrize(("arms", "count"), [(1, 1_000), (3, 10_000)])
def test_ten_thousand_extreme_updates_leave_numbers(
    name: str, options: dict[str, Any], arms: int, count: int, router: Path
) -> None:
    """Long stretches of 0, 1, all equal, one arm alone, all but one; then in turns: no NaN, no overflow."""
    one = np.eye(arms)[:1]
    patterns = [np.zeros((1, arms)), np.ones((1, arms)), np.full((1, arms), 0.5), one, 1 - one]
    selector = build(name, options, arms, router)
    with np.errstate(over="raise", invalid="raise"):
        play(selector, arms, count, lambda t: patterns[10 * t // count % 5 if t < 0.7 * count else t % 5])
    snapshot = selector.snapshot()
    assert all(v is None or np.isfinite(v) for v in (*snapshot.value, *snapshot.estimate, *snapshot.loss))


SETTINGS = {
    "stationary": World("stationary", arms=8, gap=0.25, base=0.5),
    "switching": World("changes", arms=8, gap=0.35, base=0.45, segment=150),
}
UNFIT = {  # they may be as bad as chance on worlds of this length: their theory speaks of longer ones
    ("metasd-exp3", "stationary"),
    ("metasd-exp3", "switching"),
    ("exp3spec", "stationary"),
    ("exp3spec", "switching"),
    ("metasd-halving", "switching"),  # commits to one arm
}


@pytest.fixture(scope="module")
def regrets() -> dict[tuple[str, str], tuple[float, float]]:
    """(selector, world) -> mean regret after 150 rounds, and its standard error; 10 seeds."""
    labels = [":".join([n, *(f"{k}={json.dumps(v)}" for k, v in o.items())]) for n, o in LEARNING if "costs" not in o]
    labels = ["random", *dict.fromkeys(labels)]
    found = {}
    for name, world in SETTINGS.items():
        setting = Setting(world, tuple(contender(label) for label in labels), 150, 4, "soft")
        for label, runs in zip(labels, outcomes(setting, range(10)), strict=True):
            values = np.array([o.regret[-1] for o in runs])
            found[label, name] = float(values.mean()), float(values.std() / np.sqrt(10))
    return found


@pytest.mark.parametrize("world", SETTINGS)
def test_learning_beats_chance(world: str, regrets: dict[tuple[str, str], tuple[float, float]]) -> None:
    chance, error = regrets["random", world]
    for (label, where), (regret, own) in regrets.items():
        if where == world and label != "random":
            limit = chance + 2 * (error + own) if (label, world) in UNFIT else chance - 2 * (error + own)
            assert regret < limit, (label, regret, chance)


def test_full_information_beats_bandits_and_forgetting_wins_where_the_world_changes(
    regrets: dict[tuple[str, str], tuple[float, float]],
) -> None:
    bandits = [regrets[name, "stationary"][0] for name in ("metasd-ucb", "ucbspec", "exp3spec", "metasd-exp3")]
    assert 3 * regrets["hedgespec", "stationary"][0] < min(bandits)
    assert regrets["speed", "switching"][0] < regrets["hedgespec", "switching"][0] - 5
    assert (
        regrets['hedgespec:discount=0.95:signal="vr":period=3', "switching"][0] < regrets["hedgespec", "switching"][0]
    )


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_explains_itself_and_is_plain_without_arms(name: str, router: Path) -> None:
    assert summary(name)
    options = {"model": str(router)} if name == "router" else {}
    assert make_selector(name, [], [], RNG(0), options).choose() == -1
    assert all(isinstance(v, (int, float, str, bool)) for v in selector_options(name).values())
    documented = SELECTORS[name].__doc__ or ""
    assert all(f"        {option}: " in documented for option in selector_options(name)), name


def test_mistakes_are_named() -> None:
    with pytest.raises(SpecdemoError, match="hedgespec, speed, metasd-ucb"):
        make("hedgehog")
    with pytest.raises(SpecdemoError, match="It has: beta, reward"):
        make("metasd-ucb", gamma=1)
    with pytest.raises(SpecdemoError, match="should be a float"):
        make("metasd-ucb", beta="much")
    with pytest.raises(SpecdemoError, match="discount is normalhedge's"):
        make("hedgespec", learner="hedge", discount=0.9)
    with pytest.raises(SpecdemoError, match="eal, vr, etap"):
        make("hedgespec", signal="luck")
    with pytest.raises(SpecdemoError, match="period is -1; it must be at least 0"):
        make("hedgespec", period=-1)


def test_the_prompt_reaches_the_selector() -> None:
    assert make_selector("random", ["a"], [4], RNG(0), {}, [5, 6]).prompt == (5, 6)  # type: ignore[attr-defined]
    assert Speed.prompt == ()


def test_the_documentation_knows_every_selector_option_learner_and_signal() -> None:
    text = (Path(__file__).parents[2] / "docs" / "selectors.md").read_text("utf-8")
    options = {option for name in SELECTORS for option in selector_options(name)}
    missing = {name for name in {*SELECTORS, *LEARNERS, *SIGNALS, *options} if f"`{name}`" not in text}
    assert not missing
