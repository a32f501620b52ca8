"""Bandits: every rule's trace by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from specdemo.types import SpecdemoError
from tests.selectors.worlds import make, pull

REWARDS = [0.2, 0.6, 0.4]
FAMILY = ["metasd-ucb", "discounted-ucb", "sliding-ucb", "ucbspec"]


@pytest.mark.parametrize("name", FAMILY)
def test_every_arm_once_then_the_largest_index(name: str) -> None:
    selector, order = make(name), []
    for _ in range(3):
        order.append(selector.choose())
        pull(selector, order[-1], accepted=[0, 3, 1][order[-1]], divergence=REWARDS[order[-1]])
    assert order == [0, 1, 2]
    assert selector.choose() == 1


@pytest.mark.parametrize("name", FAMILY)
def test_a_rarely_pulled_arm_has_the_larger_bonus(name: str) -> None:
    """Published code divides by the pulls of all arms: one bonus for all, so it never explores (BanditSpec's)."""
    selector = make(name, arms=2)
    for _ in range(25):
        pull(selector, 0, accepted=2)
    pull(selector, 1, accepted=2)
    frequent, rare = selector.bonus()
    assert rare > 2 * frequent
    assert selector.choose() == 1


def test_metasd_ucb() -> None:
    selector = make("metasd-ucb", beta=0.5)
    for arm, reward in enumerate(REWARDS):
        pull(selector, arm, 0, reward)
    pull(selector, 1, 0, 0.4)
    assert selector.snapshot().estimate == pytest.approx([0.2, 0.5, 0.4])
    assert selector.snapshot().value == pytest.approx(
        [m + 0.5 * math.sqrt(2 * math.log(4) / n) for m, n in ((0.2, 1), (0.5, 2), (0.4, 1))]
    )


@pytest.mark.parametrize(("reward", "wanted"), [("bd", 0.7), ("be", 0.5)])
def test_rewards(reward: str, wanted: float) -> None:
    selector = make("metasd-ucb", reward=reward)
    pull(selector, 1, accepted=2, divergence=0.7)
    assert selector.snapshot().estimate == (None, pytest.approx(wanted), None)
    assert selector.snapshot().loss == (None, pytest.approx(1 - wanted), None)


def test_halving() -> None:
    """4 arms, 16 rounds: 2 phases of 8, so 2 rounds of each of 4, then 4 of each of 2; the winner drafts on."""
    selector, order = make("metasd-halving", arms=4, budget=16), []
    for _ in range(20):
        order.append(selector.choose())
        pull(selector, order[-1], 0, [0.1, 0.6, 0.3, 0.5][order[-1]])
    assert order == [0, 0, 1, 1, 2, 2, 3, 3, *[1] * 4, *[3] * 4, *[1] * 4]
    assert selector.snapshot().value == (None, pytest.approx(0.6), None, None)


def test_halving_of_three_keeps_two_then_one() -> None:
    selector = make("metasd-halving", budget=1)
    order = []
    for _ in range(6):
        order.append(selector.choose())
        pull(selector, order[-1], 0, REWARDS[order[-1]])
    assert order == [0, 1, 2, 1, 2, 1]


def test_exp3() -> None:
    """Two arms, horizon 10: g = sqrt(2 ln 2 / 10 (e - 1)); a reward of 0.5 at p = 1/2 raises a weight by exp(g / 2)."""
    selector = make("metasd-exp3", arms=2, horizon=10)
    g = math.sqrt(2 * math.log(2) / ((math.e - 1) * 10))
    assert selector.snapshot().value == pytest.approx([0.5, 0.5])
    pull(selector, 1, 0, divergence=0.5)
    w = math.exp(g * 0.5 / (2 * 0.5))
    first = (1 - g) * w / (1 + w) + g / 2
    assert selector.snapshot().value == pytest.approx([1 - first, first])
    pull(selector, 1, 0, divergence=1.0)
    w *= math.exp(g * 1.0 / (2 * first))
    assert selector.snapshot().value[1] == pytest.approx((1 - g) * w / (1 + w) + g / 2)


def test_discounted_ucb() -> None:
    """gamma = 1/2: rewards 0.2 (arm 0), 0.6, 0.4 (arm 1): counts 1/4 and 1/2 + 1, mean of arm 1 is 0.7 / 1.5."""
    selector = make("discounted-ucb", arms=2, gamma=0.5, beta=0.3)
    for arm, reward in ((0, 0.2), (1, 0.6), (1, 0.4)):
        pull(selector, arm, 0, reward)
    total, mean = 0.25 + 1.5, (0.5 * 0.6 + 0.4) / 1.5
    assert selector.snapshot().estimate == pytest.approx([0.2, mean])
    assert selector.snapshot().value == pytest.approx(
        [
            0.2 + 0.3 * math.sqrt(2 * math.log(total) / 0.25),
            mean + 0.3 * math.sqrt(2 * math.log(total) / 1.5),
        ]
    )


def test_sliding_ucb() -> None:
    """A window of 3: what came before is forgotten, and an arm that has left it is tried again."""
    selector = make("sliding-ucb", arms=2, window=3, beta=0.3)
    for arm, reward in ((0, 0.9), (1, 0.6), (0, 0.2), (1, 0.4)):
        pull(selector, arm, 0, reward)
    assert selector.snapshot().estimate == pytest.approx([0.2, 0.5])
    assert selector.snapshot().value == pytest.approx(
        [0.2 + 0.3 * math.sqrt(2 * math.log(3) / 1), 0.5 + 0.3 * math.sqrt(2 * math.log(3) / 2)]
    )
    for _ in range(2):
        pull(selector, 1, 0, 0.8)
    assert selector.choose() == 0


def test_ucbspec() -> None:
    """L = 4, N = 2, t = 3, delta = 1/2: radius (L / 2) sqrt((1 + n) / n^2 (1 + 2 ln(N t^2 sqrt(1 + n) / delta)))."""
    selector = make("ucbspec", arms=2, scale=0.3)
    for arm, accepted in ((0, 1), (1, 4), (1, 2)):
        pull(selector, arm, accepted)

    def radius(n: int) -> float:
        return 0.3 * 2 * math.sqrt((1 + n) / n**2 * (1 + 2 * math.log(2 * 9 * math.sqrt(1 + n) / 0.5)))

    assert selector.snapshot().estimate == pytest.approx([2.0, 4.0])
    assert selector.snapshot().value == pytest.approx([2 + radius(1), 4 + radius(2)])
    assert selector.snapshot().loss == (None, pytest.approx(0.5))


def test_exp3spec() -> None:
    """L = 4, N = 2: 1 accepted of 4 at p = 1/2 charges (L + 1 - Y) / (L p) = 0.75 / 0.5; then eta = sqrt(ln 2 / 2t)."""
    selector = make("exp3spec", arms=2)
    pull(selector, 0, accepted=1)
    p = 1 / (1 + math.exp(math.sqrt(math.log(2) / (2 * 2)) * 1.5))
    assert selector.snapshot().value == pytest.approx([p, 1 - p])
    pull(selector, 1, accepted=3)
    eta, charged = math.sqrt(math.log(2) / (3 * 2)), 0.25 / (1 - p)
    p = math.exp(-eta * 1.5) / (math.exp(-eta * 1.5) + math.exp(-eta * charged))
    assert selector.snapshot().value == pytest.approx([p, 1 - p])
    assert selector.snapshot().estimate == pytest.approx([2.0, 4.0])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("metasd-ucb", {"beta": -1}, "beta is -1; it must be at least 0"),
        ("metasd-ucb", {"reward": "speed"}, "reward is 'speed'; choose one of: bd, be"),
        ("discounted-ucb", {"gamma": 1.5}, "gamma is 1.5; it must be between 0 and 1"),
        ("sliding-ucb", {"window": 0}, "window is 0; it must be at least 1"),
        ("metasd-halving", {"budget": 0}, "budget is 0; it must be at least 1"),
        ("metasd-exp3", {"horizon": 0}, "horizon is 0; it must be at least 1"),
        ("ucbspec", {"scale": -0.1}, "scale is -0.1; it must be at least 0"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(SpecdemoError, match=message):
        make(name, **options)


def test_halving_switches_rarely() -> None:
    selector, rng, arms = make("metasd-halving", arms=21), np.random.default_rng(0), []
    for _ in range(300):
        arms.append(selector.choose())
        pull(selector, arms[-1], 0, float(rng.random()))
    assert sum(a != b for a, b in pairwise(arms)) <= 2 * 21
