"""``speed`` (ours): the drafter and the draft length with the most tokens per second, plain decoding among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.estimators import Floats, VirtualRounds
from specdemo.selectors.base import Known, largest, within
from specdemo.selectors.full import FullInformation
from specdemo.selectors.pace import Pace
from specdemo.types import RoundFeedback, Snapshot, SpecdemoError

PATIENCE = 0.1  # handicap of a memory against the next longer one, in units of error
FADE = 0.99  # of prediction errors, per position
PRIOR = 0.5  # acceptance of a drafter nothing is known of, worth one position
GUESS = 0.05  # cost of one more drafted token in plain rounds, before anything is measured


class Speed(FullInformation):
    """Full information about speed: the drafter and the draft length with the most tokens per second, or none.

    For every arm i and draft length k, ``rho`` is the density of virtual round starts (estimators.py), so that
    ``1 / rho`` is its tokens per round; ``rate(i, k) = 1 / (rho T_ik)`` with measured round times T, and the largest
    rate drafts: ``rate(none) = 1 / T_0``. How far back to look is learnt, too: at four memories g, per committed
    position with acceptance x,

    * ``err_g <- 0.99 err_g + (x - A_g)^2``, ``A_g = (X_g + 0.5) / (n_g + 1)``: how well this memory predicted it;
    * ``X_g <- g X_g + x``, ``D_g <- g D_g + rho``, ``n_g <- g n_g + 1``;
    * ``w_g ~ exp(-trust (err_g + 0.1 * [3, 2, 1, 0]_g))``;
    * ``rho = sum_g w_g (D_g + strength s(A_g) + s(0.5)) / (n_g + strength + 1)``,
      ``s(A) = 1 / (1 + A + .. + A^k)``, the density of an arm that accepts every position with probability A: strong
      shrinkage, as the starts of short runs are noise.

    Plain decoding wins unless a draft promises to be ``margin`` faster: the best of many estimates is overrated.
    Constants were tuned in simulations. It follows drifting and alternating domains, but makes no promise against an
    adversary: text that turns on the leader costs it more than it costs hedgespec.

    Args:
        period: rounds from one evaluation of all arms to the next; 0: every round at first, then by cost (pace.py).
        costs: count measured times; without, every round counts alike and the longest draft of the likeliest arm wins.
        free_length: choose the draft length, up to the arm's; without, every arm drafts its own.
        cadence: of evaluations by cost: they are ``cadence * sqrt(cost)`` rounds apart.
        share: of the time of plain rounds that evaluations by cost may take; an eighth of it while none leads.
        memories: what is left of a position one position later, in each memory, the longest last.
        trust: how sharply prediction errors decide which memory is believed.
        strength: positions that the parametric density is worth.
        margin: by how much a draft must promise to be faster than plain decoding.

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
        cadence: float = 13.0,
        share: float = 0.1,
        memories: str = "0.8/0.92/0.98/1",
        trust: float = 5.0,
        strength: float = 30.0,
        margin: float = 0.05,
    ) -> None:
        super().__init__(arms, lengths, rng, Pace(period, cadence, share))
        within("trust", trust, 0)
        within("strength", strength, 0)
        within("margin", margin, 0)
        self.costs, self.trust, self.strength, self.margin = costs, trust, strength, margin
        self.memories = _memories(memories)
        n, longest = len(self.arms), int(self.lengths.max(initial=0))
        self._k = np.arange(1, longest + 1)[:, None]
        barred = self._k > self.lengths if free_length else self._k != self.lengths  # [longest, arms]
        self._barred = np.where(barred, np.inf, 0.0)
        self._rounds = VirtualRounds(np.repeat(self._k, n, axis=1), PRIOR)
        count = len(self.memories)
        self._patience = PATIENCE * np.arange(count - 1, -1, -1)[:, None]
        self._sums = np.zeros((count, longest + 1, n))  # X in row 0, D of draft length k in row k
        self._count, self._error = np.zeros((count, 1)), np.zeros((count, n))
        self._prior = _parametric(np.full((1, 1), PRIOR), np.ones((longest, 1)))
        self._factors = np.ones((longest, n))
        self._density = self._estimate()
        self._time, self._plain, self._unit = 1 + GUESS * self._k + self._barred, 1.0, 1.0
        self._length = 0
        self.last: Known = (None,) * n

    def choose(self) -> int:
        """The arm of the best (arm, draft length), or -1."""
        rate = self._rates()
        best = largest(rate.ravel(), self.rng)
        if self.costs and rate.flat[best] <= (1 + self.margin) / self._plain:
            self._length, self.chosen = 0, -1
        else:
            row, self.chosen = divmod(best, len(self.arms))
            self._length = row + 1
        return self.chosen

    def draft_length(self, arm: int) -> int:
        """The best one."""
        return self._length

    def update(self, feedback: RoundFeedback) -> None:
        """Learn from an evaluation, if there was one, and the newest times."""
        super().update(feedback)
        if feedback.round_ms is not None:
            self._measured(feedback.round_ms, feedback.feedback_ms)

    def _measured(self, round_ms: Floats, feedback_ms: float) -> None:
        """Times of rounds, with an evaluation's share; plain decoding need not evaluate."""
        self._unit, self._plain = 1000.0, max(float(round_ms[0, 0]), 1e-6)
        spent = round_ms.T[1:] + feedback_ms / self.pace.period if self.costs else self._plain
        self._time = spent + self._barred

    def learn(self, a: Floats, r: Floats, factors: Floats | None = None) -> None:
        """Positions in their order, then the new densities."""
        if factors is not None:
            self._factors = factors.T
        for x in a:
            self._error *= FADE
            self._error += (x - (self._sums[:, 0] + PRIOR) / (self._count + 1)) ** 2
            self._sums *= self.memories[:, :, None]
            self._sums[:, 0] += x
            self._sums[:, 1:] += self._rounds.push(x, factors)
            self._count *= self.memories
            self._count += 1
        self._density = self._estimate()
        self.last = tuple((1 - a.mean(0)).tolist()) if len(a) else (None,) * len(self.arms)

    def _estimate(self) -> Floats:
        """[longest, arms] rho of every draft length and arm."""
        handicap = self._error + self._patience
        w = np.exp(-self.trust * (handicap - handicap.min(0)))
        w /= w.sum(0)
        shrunk = _parametric((self._sums[:, 0] + PRIOR) / (self._count + 1), self._factors)
        shrunk *= self.strength
        shrunk += self._sums[:, 1:]
        shrunk += self._prior
        shrunk *= (w / (self._count + self.strength + 1))[:, None]
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


def _memories(text: str) -> Floats:
    """[memories, 1] "0.8/0.92/1": numbers from 0 to 1 that rise."""
    try:
        found = np.array([float(part) for part in text.split("/")])
    except ValueError:
        found = np.array([-1.0])
    if not (found[0] >= 0 and found[-1] <= 1 and (np.diff(found) > 0).all()):
        raise SpecdemoError(f"memories is {text!r}; it must be rising numbers from 0 to 1, like 0.8/0.92/0.98/1.")
    return found[:, None]


def _parametric(acceptance: Floats, factors: Floats) -> Floats:
    """[memories, arms] A, [longest, arms] factors by depth -> [memories, longest, arms] density of round starts of an
    arm that accepts every position with probability A: 1 / (1 + A + .. + A^k) where all factors are 1."""
    reached = np.minimum(1, acceptance[:, None] * factors)
    np.multiply.accumulate(reached, axis=1, out=reached)
    np.add.accumulate(reached, axis=1, out=reached)
    reached += 1
    return np.reciprocal(reached, out=reached)
