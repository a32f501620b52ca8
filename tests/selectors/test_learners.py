"""Learners with full information: definitions by hand, numerics at the edge, regret on a stochastic world."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specdemo.selectors.adahedge import AdaHedge
from specdemo.selectors.adanormalhedge import AdaNormalHedge
from specdemo.selectors.fixed_share import FixedShare
from specdemo.selectors.hedge import Hedge
from specdemo.selectors.learners import LEARNERS
from specdemo.selectors.normalhedge import NormalHedge
from specdemo.selectors.squint import Squint, log_evidence

LOSSES = np.array([[0.2, 0.8], [0.5, 0.1], [0.0, 1.0]])


def test_normalhedge() -> None:
    """Regrets 2, 1, -1: c solves mean(exp(x^2 / 2c)) = e, checked against the definition."""
    learner = NormalHedge(3)
    learner.regret = np.array([2.0, 1.0, -1.0])
    w = learner.weights()
    assert w[2] == 0
    assert w.sum() == pytest.approx(1)
    # w0 / w1 = (2 exp(4 / 2c)) / exp(1 / 2c) = 2 exp(3 / 2c); put the c it implies back into its equation
    c = 1.5 / math.log(w[0] / w[1] / 2)
    assert (math.exp(4 / (2 * c)) + math.exp(1 / (2 * c)) + 1) / 3 == pytest.approx(math.e, rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 21, 64])
def test_normalhedge_solves_its_equation_from_wherever_it_was(n: int) -> None:
    """Newton from the last solution, after jumps of any size, against bisection."""
    rng, learner = np.random.default_rng(n), NormalHedge(n)
    for scale in (1, 1e-6, 1e6, 1, 1e3, 1e-3):
        for _ in range(20):
            learner.regret = scale * rng.standard_normal(n) * rng.integers(0, 2, n)
            x = np.maximum(learner.regret, 0)
            if x.max() <= 1e-12:
                assert learner.weights() == pytest.approx([1 / n] * n)
                continue
            low, high = 1 / (2 * math.log(1 + n * (math.e - 1))), 0.5
            for _ in range(100):
                c = (low + high) / 2
                more = np.exp((x / x.max()) ** 2 / (2 * c)).mean() > math.e
                low, high = (c, high) if more else (low, c)
            wanted = x * np.exp((x / x.max()) ** 2 / (2 * c))
            assert learner.weights() == pytest.approx(wanted / wanted.sum(), abs=1e-9)


def test_normalhedge_is_uniform_first_and_scale_free() -> None:
    assert NormalHedge(4).weights() == pytest.approx([0.25] * 4)
    small, large = NormalHedge(3), NormalHedge(3)
    for loss in np.random.default_rng(0).random((30, 3)):
        small.update(loss)
        large.update(100 * loss)
    assert small.weights() == pytest.approx(large.weights())


def test_discounted_normalhedge() -> None:
    """Regrets 0.3, -0.3 after uniform weights; all weight on arm 0, then, with half of them left: 0.15, -0.15 + 0.4."""
    learner = NormalHedge(2, discount=0.5)
    learner.update(LOSSES[0])
    assert learner.regret == pytest.approx([0.3, -0.3])
    assert learner.weights() == pytest.approx([1, 0])
    learner.update(LOSSES[1])
    assert learner.regret == pytest.approx([0.15, 0.25])


def test_hedge() -> None:
    fixed, anytime = Hedge(2, eta=3.0), Hedge(2)
    for loss in LOSSES[:2]:
        fixed.update(loss)
        anytime.update(loss)
    for learner, eta in ((fixed, 3.0), (anytime, math.sqrt(8 * math.log(2) / 3))):
        w = np.exp(-eta * np.array([0.7, 0.9]))
        assert learner.weights() == pytest.approx(w / w.sum())


def test_adahedge() -> None:
    """Step 1: eta infinite, mix loss 0.2 against 0.5: gap 0.3. Step 2: eta = ln 2 / 0.3, weights of losses 0.2, 0.8."""
    learner = AdaHedge(2)
    learner.update(LOSSES[0])
    assert learner.gap == pytest.approx(0.3)
    eta = math.log(2) / 0.3
    w = np.exp(-eta * LOSSES[0])
    w /= w.sum()
    assert learner.weights() == pytest.approx(w)
    learner.update(LOSSES[1])
    mix = -math.log(w @ np.exp(-eta * LOSSES[1])) / eta
    assert learner.gap == pytest.approx(0.3 + w @ LOSSES[1] - mix)


def test_adanormalhedge() -> None:
    """w ~ Phi(R + 1, C + 1) - Phi(R - 1, C + 1), C + 1 in both (one published copy has C - 1 in the second)."""
    learner = AdaNormalHedge(2)
    assert learner.weights() == pytest.approx([0.5, 0.5])
    learner.update(LOSSES[0])
    assert learner.regret == pytest.approx([0.3, -0.3])
    assert learner.size == pytest.approx([0.3, 0.3])
    learner.regret, learner.size = np.array([2.5, 0.5]), np.array([3.0, 2.0])
    w = np.array([math.exp(3.5**2 / 12) - math.exp(1.5**2 / 12), math.exp(1.5**2 / 9) - 1])
    assert learner.weights() == pytest.approx(w / w.sum())


def test_squint() -> None:
    """The evidence against quadrature, far beyond where erf and exp have digits left."""
    nodes, weights = np.polynomial.legendre.leggauss(400)
    eta, weights = (nodes + 1) / 4, weights / 4
    for r in (-30.0, -8.0, -1.0, 0.0, 0.5, 3.0, 12.0, 60.0):
        for v in (0.0, 1e-12, 0.01, 1.0, 5.0, 20.0, 300.0):
            exponent = eta * r - eta**2 * v
            top = exponent.max()
            wanted = top + math.log(np.exp(exponent - top) @ weights)
            assert log_evidence(r, v) == pytest.approx(wanted, abs=1e-8), (r, v)
    learner = Squint(2)
    learner.update(LOSSES[0])
    assert learner.variance == pytest.approx([0.09, 0.09])
    assert math.log(learner.weights()[0] / learner.weights()[1]) == pytest.approx(
        log_evidence(0.3, 0.09) - log_evidence(-0.3, 0.09)
    )


def test_fixed_share() -> None:
    learner = FixedShare(2, eta=2.0, alpha=0.1)
    learner.update(LOSSES[0])
    w = np.exp(-2 * LOSSES[0])
    assert learner.weights() == pytest.approx(0.9 * w / w.sum() + 0.05)
    for _ in range(200):
        learner.update(np.array([0.0, 1.0]))
    assert learner.weights()[1] == pytest.approx(0.05, rel=0.2)


def regret(name: str, seeds: int = 8, steps: int = 300, **options: float) -> float:
    """21 experts, gap 0.15, sd 0.2: mean regret of the learner against the best expert."""
    total = 0.0
    for seed in range(seeds):
        rng, mean = np.random.default_rng(seed), np.full(21, 0.55)
        mean[3] = 0.40
        losses = np.clip(mean + 0.2 * rng.standard_normal((steps, 21)), 0, 1)
        learner = LEARNERS[name](21, **options)
        for loss in losses:
            total += learner.weights() @ loss
            learner.update(loss)
        total -= losses.sum(0).min()
    return total / seeds


@pytest.mark.parametrize(
    ("name", "limit"),
    [("normalhedge", 2.5), ("adahedge", 3.0), ("adanormalhedge", 4.5), ("hedge", 6.5), ("squint", 15.0)],
)
def test_regret_on_a_stochastic_world(name: str, limit: float) -> None:
    """Research figures: 1.4, 1.8, 3.1, 4.5, 12.6; who learns nothing has 45 * 20 / 21."""
    assert 0 < regret(name) < limit


def test_fixed_share_and_discounting_follow_changes() -> None:
    """The best expert changes every 100 steps: those that forget lose less than plain NormalHedge."""

    def paid(name: str, **options: float) -> float:
        rng, learner, total = np.random.default_rng(0), LEARNERS[name](5, **options), 0.0
        for t in range(600):
            loss = np.clip(0.6 + 0.1 * rng.standard_normal(5), 0, 1)
            loss[t // 100 % 5] -= 0.4
            total += learner.weights() @ loss
            learner.update(loss)
        return total

    plain = paid("normalhedge")
    assert paid("normalhedge", discount=0.95) < plain - 60
    assert paid("fixed-share") < plain - 60


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize("n", [1, 5])
def test_extreme_losses_leave_probabilities(name: str, n: int) -> None:
    learner, one = LEARNERS[name](n), np.eye(n)[0]
    patterns = [np.zeros(n), np.ones(n), np.full(n, 0.5), one, 1 - one]
    for step in range(2_000):  # long stretches of each, then all in turns
        learner.update(patterns[step // 250 % 5 if step < 1_500 else step % 5])
        if step % 50 == 0:
            w = learner.weights()
            assert np.isfinite(w).all()
            assert w.min() >= 0
            assert w.sum() == pytest.approx(1)
