"""Running means and lines by hand, and the table that selectors get."""

from __future__ import annotations

import numpy as np
import pytest

from specdemo.engine import generate
from specdemo.selectors import SELECTORS
from specdemo.selectors.base import BaseSelector
from specdemo.times import Line, Mean, Times
from specdemo.types import Pool, Request, RoundFeedback
from tests.fakes import FakeTarget, TableDrafter, arm, table


def test_the_first_value_warms_up_and_outliers_are_cut() -> None:
    mean, seen = Mean(), []
    for x in (500.0, 10.0, 20.0, 1000.0, 15.0):
        mean.add(x)
        seen.append(mean.value)
    # 10 forgets 500; (10 + 20) / 2; 1000 counts as 45: 15 + (45 - 15) / 3; 25 + (15 - 25) / 4
    assert seen == pytest.approx([500, 10, 15, 25, 22.5])


def test_a_cost_that_has_grown_is_believed_in_a_few_steps() -> None:
    mean = Mean()
    for x in [10.0] * 50 + [100.0] * 60:
        mean.add(x)
    assert mean.value == pytest.approx(100, rel=0.05)


def test_a_line_through_two_lengths() -> None:
    """3 ms and 2 ms a token; while one length only was seen, all is per token."""
    line = Line()
    assert line(4) == 0
    line.add(5, 1000.0)
    line.add(5, 13.0)
    assert line(5) == pytest.approx(13)
    assert line(1) == pytest.approx(13 / 5)
    line.add(1, 5.0)  # n: 3, spread 4; ms: 9, covariance 8; all per token would be 9 / 3
    slope = (8 + 0.25 * 3) / (4 + 0.25)
    assert [line(n) for n in (1, 3, 8)] == pytest.approx([9 - 2 * slope, 9, 9 + 5 * slope])
    for _ in range(200):
        line.add(5, 13.0)
    assert line(1) == pytest.approx(13 / 5, rel=0.01)  # long ago: forgotten


def test_no_part_of_a_line_is_negative() -> None:
    falling, steep = Line(), Line()
    for n, ms in ((1, 90.0), (1, 90.0), (4, 3.0)):
        falling.add(n, ms)
    assert falling(1) == falling(8) == pytest.approx(46.5)
    for n, ms in ((1, 1.0), (1, 1.0), (2, 3.0)):
        steep.add(n, ms)
    assert steep(1) == pytest.approx(2 / 1.5)


def test_table_of_round_times() -> None:
    times = Times()
    for _ in range(2):
        for k in (1, 3):
            times.drafted("head", k, 2.0 * k)
        times.caught_up("head", 0.5)
        times.verified(False, 40.0)
        times.verified(True, 50.0)
        times.ended(1.0, 2.0)
    table = times.round_ms([("head", False), ("tree", True), ("head", True)], 3)
    assert table == pytest.approx(np.array([[43, 45.5, 47.5, 49.5], [43, 53, 53, 53], [43, 55.5, 57.5, 59.5]]))
    assert Times().round_ms([("x", True)], 2).tolist() == [[0, 0, 0]]


def test_fixed_times_do_not_look_at_the_clock() -> None:
    times = Times.fixed(30.0, {"a": 2.0}, evaluation_ms=4.0)
    arms = [("a", False), ("b", True)]
    before = times.round_ms(arms, 2)
    assert before.tolist() == [[30, 32, 34], [30, 30, 30]]
    times.drafted("a", 1, 99.0)
    times.verified(False, 99.0)
    times.evaluated(99.0)
    times.ended(9.0, 9.0)
    assert (times.round_ms(arms, 2) == before).all()
    assert times.evaluation.value == 4
    assert not times.unknown("b")


class Listener(BaseSelector):
    """Keeps the times it is told."""

    information = "full"
    told: list[RoundFeedback]

    def choose(self) -> int:
        return 0

    def update(self, feedback: RoundFeedback) -> None:
        Listener.told.append(feedback)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[RoundFeedback]:
    monkeypatch.setitem(SELECTORS, "listener", Listener)
    Listener.told = []
    return Listener.told


def slow_pool(**more) -> Pool:
    import time

    class Slow(TableDrafter):
        def propose(self, k, rng):
            time.sleep(0.002 * k)
            return super().propose(k, rng)

    starts = [lambda c: Slow(table(5, 1), "sample", c), lambda c: TableDrafter(table(5, 2), "sample", c)]
    return Pool("timed", FakeTarget(table(5, 0), 5), (arm("slow", starts[0]), arm("quick", starts[1], k=2)), **more)


def test_the_engine_measures_every_arm_before_the_first_choice(told: list[RoundFeedback]) -> None:
    made, asked = slow_pool(), Request(prompt="01", selector="listener", k=4, max_new_tokens=30, ignore_eos=True)
    list(generate(asked, made))
    first, last = told[0].round_ms, told[-1].round_ms
    assert first is not None
    assert last is not None
    assert first.shape == last.shape == (2, 5)
    assert (np.diff(last[0]) >= 0).all()  # two milliseconds a token and more ...
    assert last[0, 4] - last[0, 0] > 7
    assert last[0, 4] > last[1, 4] > 0  # ... and the other arm is known, too, though it never drafted
    assert (last[:, 0] > 0).all()
    assert told[-1].feedback_ms > 0
    again: list[float] = []
    made.times.drafted = lambda *_: again.append(1.0)  # type: ignore[method-assign]
    list(generate(asked, made))
    rounds = len(told) - len(again)
    assert rounds > 0  # the next answer starts from what is known: one measurement a round that drafts, none before


def test_times_of_a_pool_may_be_given(told: list[RoundFeedback]) -> None:
    made = slow_pool(times=Times.fixed(30.0, {"slow": 2.0, "quick": 0.5}, evaluation_ms=3.0))
    list(generate(Request(prompt="01", selector="listener", k=4, max_new_tokens=12), made))
    assert all(f.round_ms is not None and f.round_ms[0].tolist() == [30, 32, 34, 36, 38] for f in told)
    assert all(f.round_ms is not None and f.round_ms[1].tolist() == [30, 30.5, 31, 31.5, 32] for f in told)
    assert {f.feedback_ms for f in told} == {3.0}
