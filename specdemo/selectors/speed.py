"""``speed`` (ours): the drafter and the draft length with the most tokens per second, plain decoding among them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specdemo.estimators import Floats, VirtualRounds
from specdemo.selectors.base import Known, largest, within
from specdemo.selectors.full import FullInformation
from specdemo.types import RoundFeedback, Snapshot

MEMORIES = np.array([0.80, 0.92, 0.98, 1.0])[:, None]  # what is left of a position one position later: [memories, 1]
TRUST = 5.0  # how sharply prediction errors decide which memory is believed
PATIENCE = 0.1 * np.arange(3, -1, -1)[:, None]  # handicap of the shorter memories, in units of error
FADE = 0.99  # of prediction errors, per position
PRIOR = 0.5  # acceptance of a drafter nothing is known of, worth one position
STRENGTH = 30.0  # positions that the parametric density is worth
GUESS = 0.05  # cost of one more drafted token in plain rounds, before anything is measured
WARM_UP, BACK_OFF = 4, 8  # first rounds, all evaluated; largest factor of the period while plain decoding leads


class Speed(FullInformation):
    """Full information about speed: the drafter and the draft length with the most tokens per second, or none.

    For every arm i and draft length k, ``rho`` is the density of virtual round starts (estimators.py), so that
    ``1 / rho`` is its tokens per round; ``rate(i, k) = 1 / (rho T_ik)`` with measured round times T, and the largest
    rate drafts: ``rate(none) = 1 / T_0``. How far back to look is learnt, too: at four memories g, per committed
    position with acceptance x,

    * ``err_g <- 0.99 err_g + (x - A_g)^2``, ``A_g = (X_g + 0.5) / (n_g + 1)``: how well this memory predicted it;
    * ``X_g <- g X_g + x``, ``D_g <- g D_g + rho``, ``n_g <- g n_g + 1``;
    * ``w_g ~ exp(-5 (err_g + 0.1 * [3, 2, 1, 0]_g))``;
    * ``rho = sum_g w_g (D_g + 30 s(A_g) + s(0.5)) / (n_g + 31)``, ``s(A) = 1 / (1 + A + .. + A^k)``, the density of an
      arm that accepts every position with probability A: strong shrinkage, as the starts of short runs are noise.

    Constants were tuned in simulations. It follows drifting and alternating domains, but makes no promise against an
    adversary: text that turns on the leader costs it more than it costs hedgespec.

    Args:
        period: rounds from one evaluation of all arms to the next; 0: every round four times, then
            ``max(1, round(13 sqrt(evaluation time / plain round time)))``, up to 8 times that while none leads.
        costs: count measured times; without, every round counts alike and the longest draft of the likeliest arm wins.
        free_length: choose the draft length, up to the arm's; without, every arm drafts its own.

    In the snapshot ``value`` is tokens per second (per plain round while no times are known) and ``estimate`` tokens
    per round, both at the arm's best draft length; ``loss`` is the mean 1 - acceptance of the positions just evaluated.
    """

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        period: int = 0,
        costs: bool = True,
        free_length: bool = True,
    ) -> None:
        super().__init__(arms, lengths, rng, max(1, period))
        within("period", period, 0)
        self.adaptive, self.costs = period == 0, costs
        n, longest = len(self.arms), int(self.lengths.max(initial=0))
        self._k = np.arange(1, longest + 1)[:, None]
        barred = self._k > self.lengths if free_length else self._k != self.lengths  # [longest, arms]
        self._barred = np.where(barred, np.inf, 0.0)
        self._rounds = VirtualRounds(np.repeat(self._k, n, axis=1), PRIOR)
        self._sums = np.zeros((len(MEMORIES), longest + 1, n))  # X in row 0, D of draft length k in row k
        self._count, self._error = np.zeros((len(MEMORIES), 1)), np.zeros((len(MEMORIES), n))
        self._prior = _parametric(np.full((1, 1), PRIOR), np.ones((longest, 1)))
        self._factors = np.ones((longest, n))
        self._density = self._estimate()
        self._time, self._plain, self._unit = 1 + GUESS * self._k + self._barred, 1.0, 1.0
        self._length, self._seen, self._back_off = 0, 0, 1
        self.last: Known = (None,) * n

    def choose(self) -> int:
        """The arm of the best (arm, draft length), or -1."""
        rate = self._rates()
        best = largest(rate.ravel(), self.rng)
        if self.costs and rate.flat[best] <= 1 / self._plain:
            self._length, self.chosen = 0, -1
        else:
            row, self.chosen = divmod(best, len(self.arms))
            self._length = row + 1
        return self.chosen

    def draft_length(self, arm: int) -> int:
        """The best one."""
        return self._length

    def due(self) -> bool:
        """In the first rounds, then once a period, less often while plain decoding leads."""
        return (self.adaptive and self._seen < WARM_UP) or self.since + 1 >= self.period * self._back_off

    def update(self, feedback: RoundFeedback) -> None:
        """Learn from an evaluation, if there was one, and the newest times."""
        self._seen += 1
        if feedback.round_ms is not None:
            self._measured(feedback.round_ms, feedback.feedback_ms)
        super().update(feedback)

    def _measured(self, round_ms: Floats, feedback_ms: float) -> None:
        """Times of rounds, with an evaluation's share; plain decoding need not evaluate."""
        self._unit, self._plain = 1000.0, max(float(round_ms[0, 0]), 1e-6)
        if self.adaptive:
            self.period = max(1, round(13 * math.sqrt(feedback_ms / self._plain)))
        spent = round_ms.T[1:] + feedback_ms / self.period if self.costs else self._plain
        self._time = spent + self._barred

    def learn(self, a: Floats, r: Floats, factors: Floats | None = None) -> None:
        """Positions in their order, then the new densities."""
        if factors is not None:
            self._factors = factors.T
        for x in a:
            self._error *= FADE
            self._error += (x - (self._sums[:, 0] + PRIOR) / (self._count + 1)) ** 2
            self._sums *= MEMORIES[:, :, None]
            self._sums[:, 0] += x
            self._sums[:, 1:] += self._rounds.push(x, factors)
            self._count *= MEMORIES
            self._count += 1
        self._density = self._estimate()
        self._back_off = 1 if self.chosen >= 0 else min(BACK_OFF, 2 * self._back_off)
        self.last = tuple((1 - a.mean(0)).tolist()) if len(a) else (None,) * len(self.arms)

    def _estimate(self) -> Floats:
        """[longest, arms] rho of every draft length and arm."""
        handicap = self._error + PATIENCE
        w = np.exp(-TRUST * (handicap - handicap.min(0)))
        w /= w.sum(0)
        shrunk = _parametric((self._sums[:, 0] + PRIOR) / (self._count + 1), self._factors)
        shrunk *= STRENGTH
        shrunk += self._sums[:, 1:]
        shrunk += self._prior
        shrunk *= (w / (self._count + STRENGTH + 1))[:, None]
        density: Floats = shrunk.sum(0)
        return density

    def _rates(self) -> Floats:
        """[longest, arms] tokens per unit of time."""
        rate: Floats = 1 / (self._density * self._time)
        return rate

    def snapshot(self) -> Snapshot:
        """Tokens per second and per round of every arm at its best draft length."""
        rate = self._rates()
        best = rate.argmax(0), range(len(self.arms))
        return Snapshot(
            "index", tuple((self._unit * rate[best]).tolist()), tuple((1 / self._density[best]).tolist()), self.last
        )


def _parametric(acceptance: Floats, factors: Floats) -> Floats:
    """[memories, arms] A, [longest, arms] factors by depth -> [memories, longest, arms] density of round starts of an
    arm that accepts every position with probability A: 1 / (1 + A + .. + A^k) where all factors are 1."""
    reached = np.minimum(1, acceptance[:, None] * factors)
    np.multiply.accumulate(reached, axis=1, out=reached)
    np.add.accumulate(reached, axis=1, out=reached)
    reached += 1
    return np.reciprocal(reached, out=reached)
