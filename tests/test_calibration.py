"""Factors by hand, and from drafters whose drafts fall behind on purpose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdemo.calibration import Calibration
from specdemo.engine import generate
from specdemo.estimators import VirtualRounds
from specdemo.evaluation.ledger import estimated
from specdemo.types import Request, Sampling
from tests.fakes import FakeTarget, TableDrafter, arm, pool, table


def test_factors_by_hand() -> None:
    """s = 2. Family "head" (arms 0, 1), "lm" (arm 2). Arm 0 drafts at position 10: realised .8, .3; and at 12: .6."""
    c = Calibration([2, 2, 1], ["head", "head", "lm"], strength=2.0)
    assert (c.factors() == 1).all()
    c.drafted(0, 10, np.array([0.8, 0.3]))
    c.drafted(0, 12, np.array([0.6]))
    assert (c.factors() == 1).all()  # not before the positions are judged
    acceptance = np.zeros((4, 3))
    acceptance[:, 0] = [0.9, 0.8, 0.7, 0.5]  # positions 9 .. 12
    acceptance[:, 1] = 0.25
    c.judged(9, acceptance)
    # depth 0: R = 1.4, E = .8 + .5; depth 1: R = .3, E = .7
    family = np.array([(1.4 + 2) / (1.3 + 2), (0.3 + 2) / (0.7 + 2)])
    assert c.factors()[0] == pytest.approx([(1.4 + 2 * family[0]) / 3.3, (0.3 + 2 * family[1]) / 2.7])
    assert c.factors()[1] == pytest.approx(family)  # never drafted: as its family does
    assert c.factors()[2].tolist() == [1, 1]
    c.judged(13, np.ones((1, 3)))  # drafts count once
    assert c.factors()[1] == pytest.approx(family)
    assert Calibration([], []).factors().shape == (0, 0)


def test_virtual_rounds_take_an_acceptance_for_every_depth() -> None:
    """K = 2, x = .5 at depth 0 and .25 at depth 1, by hand; and factors of 1 are none."""
    rounds, factors = VirtualRounds([2]), np.array([[1.0, 0.5]])
    x = np.array([0.5])
    assert rounds.push(x, factors)[0] == 0.5  # p = (.5, .5, 0)
    assert rounds.push(x, factors)[0] == pytest.approx(0.5 * 0.5 + 0.75 * 0.5)  # p = (.625, .25, .125)
    assert rounds.push(x, factors)[0] == pytest.approx(0.5 * 0.625 + 0.75 * 0.25 + 0.125)
    one, many, rng = VirtualRounds([3, 1]), VirtualRounds([3, 1]), np.random.default_rng(0)
    for _ in range(20):
        r = rng.random(2)
        assert one.push(r) == pytest.approx(many.push(r, np.ones((2, 3))))


class Fading(TableDrafter):
    """The target's own law, which after the first token of a draft is mixed with noise."""

    def propose(self, k, rng):
        committed, clean = len(self.text), self.row
        flat = torch.full((5,), 0.2, dtype=torch.float64)
        self.row = lambda c: clean(c) if len(c) <= committed else 0.5 * clean(c) + 0.5 * flat  # type: ignore[method-assign]
        try:
            return super().propose(k, rng)
        finally:
            self.row = clean  # type: ignore[method-assign]


def test_drafts_that_fade_are_corrected() -> None:
    """Teacher-forced, this drafter is perfect (one round in K + 1 tokens); really, it is not. Mean over answers of the
    calibrated estimate is the mean of rounds it takes; the uncalibrated one is far off."""
    law, plain, calibrated, real = table(5, 0, scale=2.0), [], [], []
    fading = pool(FakeTarget(law, 5), arm("fading", lambda c: Fading(law, "sample", c)))
    for seed in range(6):
        asked = Request(prompt="01", selector="fixed", k=4, max_new_tokens=120, ignore_eos=True, seed=seed,
                        sampling=Sampling(temperature=1.0), shadow=True)  # fmt: skip
        rounds = list(generate(asked, fading))
        real.append(len(rounds))
        result = estimated(rounds)
        assert result is not None
        plain.append(result["arms"]["fading"]["uncalibrated"])
        calibrated.append(result["arms"]["fading"]["rounds"])
    assert np.mean(plain) == pytest.approx(24, abs=1e-6)
    assert np.mean(real) > 29
    assert np.mean(calibrated) == pytest.approx(np.mean(real), rel=0.06)
    off = Request(prompt="01", selector="fixed", k=4, max_new_tokens=60, ignore_eos=True, shadow=True, calibrate=False)
    result = estimated(list(generate(off, fading)))
    assert result is not None
    assert result["arms"]["fading"]["rounds"] == result["arms"]["fading"]["uncalibrated"] == pytest.approx(12)
