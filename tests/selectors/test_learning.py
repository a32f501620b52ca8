"""HedgeSpec and the baselines: what is fed when, and whom they find."""

from __future__ import annotations

import numpy as np
import pytest

from specdemo.types import RoundFeedback, SpecdemoError
from tests.selectors.worlds import make, seen


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


def test_hedgespec_with_virtual_rounds() -> None:
    """K = 1, bits 1 1 for arm 0, 0 0 for arm 1: rho is 0 1 and 1 1, so after two positions arm 0 has all the weight."""
    selector = make("hedgespec", arms=2, k=1, signal="vr")
    selector.update(RoundFeedback(0, 1, 1, **seen((1.0, 0.0), (1.0, 0.0))))
    snapshot = selector.snapshot()
    assert snapshot.loss == pytest.approx((0.5, 1.0))
    assert snapshot.estimate == pytest.approx((2.0, 1.0))
    assert snapshot.value == pytest.approx((1.0, 0.0))


def test_hedgespec_with_acceptance_of_each_position() -> None:
    selector = make("hedgespec", arms=2, signal="etap")
    selector.update(RoundFeedback(0, 4, 1, **seen((0.9, 0.3), (0.5, 0.5))))
    snapshot = selector.snapshot()
    assert snapshot.estimate == pytest.approx((0.7, 0.4))
    assert snapshot.loss == pytest.approx((0.3, 0.6))


def test_hedgespec_takes_ratios_as_its_form_says() -> None:
    """K = 1 on a = 0.4, r = 0.9: 1 + a, or 1 + r."""
    for form, wanted in (("iw-a", 1.4), ("plug-in", 1.4), ("iw-b", 1.9)):
        selector = make("hedgespec", arms=1, k=1, form=form)
        selector.update(RoundFeedback(0, 1, 0, acceptance=np.array([[0.4]]), ratio=np.array([[0.9]])))
        assert selector.snapshot().estimate == pytest.approx((wanted,))


def test_rounds_without_evaluation_change_nothing_and_nothing_is_dropped() -> None:
    """Period 3: two rounds wait, the third brings all positions; the state is that of a selector told at once."""
    xs = np.random.default_rng(0).random((6, 2, 4))
    late, prompt = make("hedgespec", arms=4, period=3), make("hedgespec", arms=4)
    for t in range(6):
        before, due = late.snapshot(), t % 3 == 2
        assert late.due() == due
        assert prompt.due()
        late.update(RoundFeedback(0, 4, 1, **(seen(*xs[t - 2 : t + 1].reshape(-1, 4)) if due else {})))
        prompt.update(RoundFeedback(0, 4, 1, **seen(*xs[t])))
        assert (late.snapshot() == before) == (not due)
    assert late.snapshot().value == pytest.approx(prompt.snapshot().value)


@pytest.mark.parametrize("choice", ["sample", "argmax"])
@pytest.mark.parametrize("signal", ["eal", "vr", "etap"])
def test_hedgespec_finds_the_best_arm(choice: str, signal: str) -> None:
    selector, rng = make("hedgespec", arms=8, choice=choice, signal=signal), np.random.default_rng(1)
    picks = []
    for _ in range(150):
        arm = selector.choose()
        picks.append(arm)
        bits = rng.random((3, 8)) < np.where(np.arange(8) == 5, 0.9, 0.5)
        selector.update(RoundFeedback(arm, 4, 0, **seen(*bits.astype(float))))
    assert np.mean(np.array(picks[75:]) == 5) > 0.9


def test_ties_are_broken_by_lot() -> None:
    assert {make("hedgespec", arms=4, choice="argmax", seed=seed).choose() for seed in range(40)} == {0, 1, 2, 3}


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
