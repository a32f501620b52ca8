"""``speed``: its equations, written once more arm by arm, and what it should do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specdemo.types import RoundFeedback, SpecdemoError
from tests.selectors.worlds import make

MEMORIES = (0.80, 0.92, 0.98, 1.0)


def times(arms: int, k: int, slope: float = 0.05, plain: float = 10.0) -> np.ndarray:
    """[arms, k + 1] milliseconds of a round."""
    return np.tile(plain * (1 + slope * np.arange(k + 1)), (arms, 1))


def feedback(x: np.ndarray | None, round_ms: np.ndarray | None, feedback_ms: float = 0.0) -> RoundFeedback:
    return RoundFeedback(0, 0, 0, acceptance=x, ratio=x, round_ms=round_ms, feedback_ms=feedback_ms)


def tell(selector, x: np.ndarray, round_ms: np.ndarray | None, feedback_ms: float = 0.0) -> None:
    """An evaluation of the positions x [n, arms]."""
    selector.update(feedback(x, round_ms, feedback_ms))


def density(xs: list[float], k: int) -> float:
    """rho of one arm after its acceptances, from the definition."""
    prior = 1 / sum(0.5**j for j in range(k + 1))
    p = [0.5**j * prior for j in range(k + 1)]
    x_sum, d_sum, count, error = [0.0] * 4, [0.0] * 4, [0.0] * 4, [0.0] * 4
    for x in xs:
        rho = p[k] + (1 - x) * sum(p[:k])
        p = [rho, *(x * p[j - 1] for j in range(1, k + 1))]
        for g, memory in enumerate(MEMORIES):
            error[g] = 0.99 * error[g] + (x - (x_sum[g] + 0.5) / (count[g] + 1)) ** 2
            x_sum[g], d_sum[g], count[g] = memory * x_sum[g] + x, memory * d_sum[g] + rho, memory * count[g] + 1
    w = [math.exp(-5 * (error[g] + 0.1 * (3 - g))) for g in range(4)]
    total = 0.0
    for g in range(4):
        a = (x_sum[g] + 0.5) / (count[g] + 1)
        parametric = 1 / sum(a**j for j in range(k + 1))
        total += w[g] / sum(w) * (d_sum[g] + 30 * parametric + prior) / (count[g] + 31)
    return total


def test_rates_follow_the_equations() -> None:
    rng, selector, clock = np.random.default_rng(0), make("speed", arms=3, k=4), times(3, 4)
    clock[1] *= 1.1
    xs = rng.random((25, 3))
    tell(selector, xs[:10], clock, feedback_ms=2.0)
    tell(selector, xs[10:], clock, feedback_ms=2.0)
    period = round(13 * math.sqrt(0.2))
    wanted = [
        max((1000 / (density(xs[:, i].tolist(), k) * (clock[i, k] + 2.0 / period)), k) for k in range(1, 5))
        for i in range(3)
    ]
    snapshot = selector.snapshot()
    assert snapshot.value == pytest.approx([rate for rate, _ in wanted])
    assert snapshot.estimate == pytest.approx([1 / density(xs[:, i].tolist(), k) for i, (_, k) in enumerate(wanted)])
    assert snapshot.loss == pytest.approx(1 - xs[10:].mean(0))
    best = int(np.argmax([rate for rate, _ in wanted]))
    assert (selector.choose(), selector.draft_length(best)) == (best, wanted[best][1])


def test_before_anything_is_known_it_drafts_a_few_tokens_with_anybody() -> None:
    picks = [make("speed", arms=5, k=8, seed=seed) for seed in range(60)]
    arms = [selector.choose() for selector in picks]
    assert set(arms) == set(range(5))
    assert all(2 <= selector.draft_length(arm) <= 5 for selector, arm in zip(picks, arms, strict=True))


def test_plain_decoding_when_nobody_is_worth_it() -> None:
    selector, bad = make("speed", arms=4, k=5), np.full((6, 4), 0.02)
    for _ in range(3):
        tell(selector, bad, times(4, 5, slope=0.3))
    assert selector.choose() == -1
    for _ in range(8):  # and back, once one of them is
        tell(selector, np.array([[0.02, 0.02, 0.98, 0.02]] * 6), times(4, 5, slope=0.3))
    assert selector.choose() == 2


def test_drafts_are_as_long_as_acceptance_and_costs_make_them() -> None:
    lengths = {}
    for a in (0.3, 0.6, 0.95):
        for slope in (0.03, 0.3):
            selector, rng = make("speed", arms=2, k=8), np.random.default_rng(1)
            tell(selector, (rng.random((150, 2)) < [a, 0.05]).astype(float), times(2, 8, slope))
            lengths[a, slope] = selector.draft_length(selector.choose()) if selector.choose() == 0 else 0
    assert lengths[0.3, 0.03] < lengths[0.6, 0.03] < lengths[0.95, 0.03] == 8
    assert lengths[0.6, 0.3] < lengths[0.6, 0.03]


def test_calibration_by_depth_shortens_drafts() -> None:
    """An arm that is as good as teacher forcing says at the first token only: K = 1, density 1 / (1 + a)."""
    factors, x = np.tile([1.0, 0.0, 0.0, 0.0], (2, 1)), np.full((200, 2), 0.9)
    selector = make("speed", arms=2, k=4)
    selector.update(RoundFeedback(0, 0, 0, acceptance=x, ratio=x, calibration=factors, round_ms=times(2, 4)))
    assert selector.draft_length(selector.choose()) == 1
    assert selector.snapshot().estimate == pytest.approx((1.9, 1.9), rel=0.02)


def test_costs_decide_between_arms() -> None:
    """0.8 at double price against 0.7: acceptance alone prefers the first."""
    clock = times(2, 4)
    clock[0, 1:] *= 2
    for options, wanted in (({}, 1), ({"costs": False}, 0)):
        selector = make("speed", arms=2, k=4, **options)
        tell(selector, np.tile([0.8, 0.7], (60, 1)), clock)
        assert selector.choose() == wanted
        assert selector.draft_length(wanted) > 0


def test_its_own_lengths_if_it_must_not_choose() -> None:
    selector = make("speed", arms=3, k=6, free_length=False)
    tell(selector, np.full((20, 3), 0.3), times(3, 6, slope=0.01))
    assert selector.draft_length(selector.choose()) == 6


def test_no_draft_is_longer_than_its_arm_allows() -> None:
    from specdemo.selectors import make_selector

    selector = make_selector("speed", ["long", "short"], [6, 2], np.random.default_rng(0), {})
    x = np.tile([0.5, 0.95], (60, 1))
    selector.update(feedback(x, times(2, 6)))
    assert (selector.choose(), selector.draft_length(1)) == (1, 2)


def due_rounds(selector, rounds: int, feedback_ms: float, x: float) -> list[int]:
    done = []
    for t in range(rounds):
        arm = selector.choose()
        due = selector.due()
        seen = np.full((2, 2), x) if due else None
        selector.update(replace(feedback(seen, times(2, 4), feedback_ms), arm=arm))
        done += [t] if due else []
    return done


def test_evaluations_every_round_at_first_then_by_their_cost() -> None:
    """13 sqrt(0.05) is 2.9: every third round after the first four; with nothing to pay, every round."""
    assert due_rounds(make("speed", arms=2), 14, 0.5, x=0.8) == [0, 1, 2, 3, 6, 9, 12]
    assert due_rounds(make("speed", arms=2), 6, 0.0, x=0.8) == list(range(6))
    assert due_rounds(make("speed", arms=2, period=5), 14, 0.5, x=0.8) == [4, 9]


def test_evaluations_are_rare_while_plain_decoding_leads() -> None:
    """The gap doubles up to 8 periods of 3 rounds."""
    done = due_rounds(make("speed", arms=2), 200, 0.5, x=0.0)
    assert np.diff(done)[-4:].tolist() == [24] * 4
    assert len(done) < 20


def test_dear_evaluations_take_no_more_than_their_share() -> None:
    """u = 0.75: at most 0.5 + 0.1 t plain rounds, all of them spent while drafting pays; a fixed period is obeyed."""
    for feedback_ms in (3.0, 7.5, 15.0, 40.0):
        done = due_rounds(make("speed", arms=2), 100, feedback_ms, x=0.8)
        spent = [(i + 1) * feedback_ms / 10 for i in range(len(done))]
        assert all(s <= 0.5 + 0.1 * (t + 1) or t == 0 for s, t in zip(spent, done, strict=True))
        assert len(done) > min(14, 60 / feedback_ms)  # and they are not just forgotten
    assert len(due_rounds(make("speed", arms=2), 100, 7.5, x=0.0)) <= 3
    assert len(due_rounds(make("speed", arms=2, period=2), 100, 7.5, x=0.8)) == 50
    assert len(due_rounds(make("hedgespec", arms=2, period=0), 100, 7.5, x=0.8)) <= 15


def test_plain_decoding_wins_what_is_nearly_a_draw() -> None:
    """Promised 1.05 and a little over: the margin decides."""
    x = np.full((400, 1), 0.3)
    for margin, wanted in ((0.0, 0), (0.2, -1)):
        selector = make("speed", arms=1, k=1, margin=margin)
        tell(selector, x, times(1, 1, slope=0.15))
        assert selector.choose() == wanted


def test_memories_are_an_option() -> None:
    """One that forgets everything believes the last position."""
    selector = make("speed", arms=1, k=1, memories="0", strength=0.0)
    tell(selector, np.array([[1.0]] * 20 + [[0.0]]), times(1, 1))
    low = selector.snapshot().estimate[0]
    tell(selector, np.array([[1.0]]), times(1, 1))
    assert selector.snapshot().estimate[0] > low + 0.2
    for wrong in ("1/0.5", "much", "0.5/0.5", "0.5/2"):
        with pytest.raises(SpecdemoError, match="rising numbers"):
            make("speed", memories=wrong)


def test_it_follows_a_change_of_domain() -> None:
    selector, picks = make("speed", arms=4, k=5), []
    for t in range(120):
        picks.append(selector.choose())
        good = 1 if t < 60 else 3
        tell(selector, np.where(np.arange(4) == good, 0.8, 0.4)[None].repeat(2, 0), times(4, 5))
    assert set(picks[10:60]) == {1}
    assert set(picks[75:]) == {3}
