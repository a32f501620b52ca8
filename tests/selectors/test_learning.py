"""Selectors: hand-computed traces, published traps, seeded regret."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdemo.selectors import SELECTORS, make_selector, selector_options, summary
from specdemo.selectors.normalhedge import NormalHedge
from specdemo.types import RoundFeedback, SpecdemoError

RNG = np.random.default_rng


def make(name: str, arms: int = 3, k: int = 4, seed: int = 0, **options):
    return make_selector(name, [f"a{i}" for i in range(arms)], [k] * arms, RNG(seed), options)


def test_normalhedge_by_hand() -> None:
    """Regrets 2, 1, -1: c solves mean(exp(x^2 / 2c)) = e, checked against the definition."""
    learner = NormalHedge(3)
    learner.regret = np.array([2.0, 1.0, -1.0])
    w = learner.weights()
    assert w[2] == 0
    assert w.sum() == pytest.approx(1)
    # w0 / w1 = (2 exp(4 / 2c)) / exp(1 / 2c) = 2 exp(3 / 2c); put the c it implies back into its equation
    c = 1.5 / math.log(w[0] / w[1] / 2)
    assert (math.exp(4 / (2 * c)) + math.exp(1 / (2 * c)) + 1) / 3 == pytest.approx(math.e, rel=1e-9)


def test_normalhedge_is_uniform_first_and_scale_free() -> None:
    assert NormalHedge(4).weights() == pytest.approx([0.25] * 4)
    small, large = NormalHedge(3), NormalHedge(3)
    for loss in RNG(0).random((30, 3)):
        small.update(loss)
        large.update(100 * loss)
    assert small.weights() == pytest.approx(large.weights())


def test_normalhedge_regret_on_a_stochastic_world() -> None:
    """21 experts, gap 0.15, sd 0.2, 300 steps: mean regret about 1.4 (research figures); Hedge with its best fixed
    rate has 11. A learner that does not learn has 45 * 20 / 21."""
    regrets = []
    for seed in range(20):
        rng, mean = RNG(seed), np.full(21, 0.55)
        mean[3] = 0.40
        losses = np.clip(mean + 0.2 * rng.standard_normal((300, 21)), 0, 1)
        learner, paid = NormalHedge(21), 0.0
        for loss in losses:
            paid += learner.weights() @ loss
            learner.update(loss)
        regrets.append(paid - losses.sum(0).min())
    assert 0 < np.mean(regrets) < 2.5


def test_ucb_tries_every_arm_then_follows_its_index() -> None:
    selector = make("metasd-ucb", beta=0.5)
    rewards = [0.2, 0.6, 0.4]
    order = []
    for _ in range(3):
        arm = selector.choose()
        order.append(arm)
        selector.update(RoundFeedback(arm, 4, 0, divergence=rewards[arm]))
    assert order == [0, 1, 2]
    bonus = 0.5 * math.sqrt(2 * math.log(3) / 1)
    assert selector.snapshot().value == pytest.approx([r + bonus for r in rewards])
    assert selector.choose() == 1


def test_ucb_a_rarely_pulled_arm_has_the_larger_bonus() -> None:
    """Published code divides by the sum of all pulls: one bonus for all, so it never explores (BanditSpec's)."""
    selector = make("metasd-ucb", arms=2)
    selector.pulls[:], selector.mean[:] = [50, 2], [0.5, 0.5]
    first, second = selector.index()
    assert second > first
    assert second - 0.5 == pytest.approx(5 * (first - 0.5))


@pytest.mark.parametrize(("reward", "wanted"), [("bd", 0.7), ("be", 0.5)])
def test_ucb_rewards(reward: str, wanted: float) -> None:
    selector = make("metasd-ucb", reward=reward)
    selector.update(RoundFeedback(1, drafted=3, accepted=2, divergence=0.7))
    assert selector.snapshot().estimate == (None, pytest.approx(wanted), None)
    assert selector.snapshot().loss == (None, pytest.approx(1 - wanted), None)


def seen(*positions: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Feedback about committed positions, greedy: acceptance and ratio are the same."""
    return {"acceptance": np.array(positions), "ratio": np.array(positions)}


def test_hedgespec_feeds_completed_windows_only() -> None:
    """K = 2: the window of a position needs the next one, too."""
    selector = make("hedgespec", k=2)
    selector.update(RoundFeedback(0, 2, 1, **seen((0.0, 1.0, 1.0))))
    assert selector.snapshot().value == pytest.approx((1 / 3,) * 3)
    selector.update(RoundFeedback(0, 2, 1, **seen((1.0, 1.0, 0.0), (1.0, 1.0, 0.0))))
    snapshot = selector.snapshot()
    assert snapshot.estimate == pytest.approx((2.0, 3.0, 1.5))
    assert snapshot.loss == pytest.approx((1 / 3, 0.0, 1 / 2))
    assert np.argmax(snapshot.value) == 1


@pytest.mark.parametrize("choice", ["sample", "argmax"])
def test_hedgespec_finds_the_best_arm(choice: str) -> None:
    selector, rng = make("hedgespec", arms=8, choice=choice), RNG(1)
    picks = []
    for _ in range(150):
        arm = selector.choose()
        picks.append(arm)
        bits = rng.random((3, 8)) < np.where(np.arange(8) == 5, 0.9, 0.5)
        selector.update(RoundFeedback(arm, 4, 0, **seen(*bits.astype(float))))
    assert np.mean(np.array(picks[75:]) == 5) > 0.9


def test_fixed_and_round_robin_and_random() -> None:
    assert [make("round-robin").choose() for _ in range(2)] == [0, 0]
    selector = make("round-robin")
    assert [selector.choose() for _ in range(5)] == [0, 1, 2, 0, 1]
    assert make("fixed", arm="a2").choose() == 2
    with pytest.raises(SpecdemoError, match="a0, a1, a2"):
        make("fixed", arm="nobody")
    a, b = make("random", seed=1), make("random", seed=1)
    picks = [a.choose() for _ in range(300)]
    assert picks == [b.choose() for _ in range(300)]
    assert min(np.bincount(picks)) > 70


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_explains_itself_and_is_plain_without_arms(name: str) -> None:
    assert summary(name)
    assert make_selector(name, [], [], RNG(0), {}).choose() == -1
    assert all(isinstance(v, (int, float, str, bool)) for v in selector_options(name).values())


def test_mistakes_are_named() -> None:
    with pytest.raises(SpecdemoError, match="hedgespec, metasd-ucb"):
        make("hedgehog")
    with pytest.raises(SpecdemoError, match="It has: beta, reward"):
        make("metasd-ucb", gamma=1)
    with pytest.raises(SpecdemoError, match="should be a float"):
        make("metasd-ucb", beta="much")
