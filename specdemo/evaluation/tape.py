"""One synthetic text, written by one selector after another: what the engine does, without the models.

A round with arm i and draft length k at position s accepts the leading run of the arm's ``bits`` there, at most k,
commits one token more, and the selector learns what it would learn in the engine. Costs are in target forwards: a round
takes ``1 + 0.02 k + c_i k``, plain decoding 1, and an evaluation of all arms its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specdemo.estimators import VirtualRounds
from specdemo.evaluation.worlds import Floats, Texts, World
from specdemo.selectors import make_selector, read_selector
from specdemo.selectors.oracle import OracleDynamic, OracleStatic
from specdemo.types import RoundFeedback, Selector, SpecdemoError

Signal = Literal["soft", "bits"]
Ints = NDArray[np.int64]

VERIFY = 0.02  # cost of scoring one more row, in target forwards
POINTS = 50  # of a regret curve


@dataclass(frozen=True, slots=True)
class Contender:
    """A selector with its options; ``k``: its longest draft, None for everybody's."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    k: int | None = None


def contender(text: str) -> Contender:
    """As :func:`specdemo.selectors.read_selector`; ``k`` is its longest draft.

    Raises:
        SpecdemoError: it reads otherwise.
    """
    name, options = read_selector(text)
    k = options.pop("k", None)
    if k is not None and (not isinstance(k, int) or k < 1):
        raise SpecdemoError(f"k of the selector {text!r} is {k!r}; it must be at least 1.")
    return Contender(text, name, options, k)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated besides the world. Attributes as the arguments of :func:`simulate`."""

    world: World
    contenders: tuple[Contender, ...]
    rounds: int
    k: int
    signal: Signal

    def length(self, contender: Contender) -> int:
        """Longest draft of a contender."""
        return contender.k or self.k

    @property
    def longest(self) -> int:
        """Longest draft of all."""
        return max([self.k, *(self.length(c) for c in self.contenders)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One text of one contender. ``regret`` at the checkpoints, in rounds; ``cost`` and ``fixed_cost`` per token."""

    regret: tuple[float, ...]
    tokens: int
    cost: float
    fixed_length: float
    fixed_cost: float
    switches: int
    best_share: float
    cpu_s: float


def tapes(setting: Setting, texts: Texts, seeds: Sequence[int]) -> list[Tape]:
    """One per text; what all texts share is computed for all at once."""
    count, positions, arms = texts.bits.shape
    runs = np.zeros((positions + 1, count, arms), dtype=np.int64)
    for t in range(positions - 1, -1, -1):
        runs[t] = (runs[t + 1] + 1) * texts.bits[:, t]
    ledger = VirtualRounds([setting.k] * count * arms)
    rounds = np.cumsum([ledger.push(texts.soft[:, t].ravel()) for t in range(positions)], axis=0)
    written = 1 + (rounds < setting.rounds - 1e-9).sum(0).reshape(count, arms)  # tokens of each arm in so many rounds
    return [Tape(setting, texts, i, seed, runs[:, i], written[i]) for i, seed in enumerate(seeds)]


class Tape:
    """One text, and what every arm would do at every position of it."""

    def __init__(self, setting: Setting, texts: Texts, i: int, seed: int, runs: Ints, written: Ints) -> None:
        self.setting, self.seed, self.runs, self.mean = setting, seed, runs, texts.mean[i]
        self.shown: Floats = texts.soft[i] if setting.signal == "soft" else texts.bits[i].astype(float)
        self.sums = np.concatenate([np.zeros((1, setting.world.arms)), self.shown.cumsum(0)])
        drafting = setting.world.costs()[0]
        self.cost = 1 + (VERIFY + drafting)[:, None] * np.arange(setting.longest + 1)  # [arms, draft length]
        self.best, k = int(written.argmax()), setting.k
        self.fixed_length = written[self.best] / setting.rounds
        self.fixed_cost = min(1.0, float((setting.rounds * self.cost[:, k] / written).min()))  # per token
        ends, s, run = [], 0, runs[:, self.best].tolist()
        while s + k < len(run) - 1:
            s += min(run[s], k) + 1
            ends.append(s)
        self.ends = np.array(ends)

    def play(self, contender: Contender) -> Outcome:
        """Let a contender write the text."""
        begin = time.process_time()
        k = self.setting.length(contender)
        arms, ends, cost = self._rounds(self._selector(contender, k), k)
        spent = time.process_time() - begin
        points = checkpoints(self.setting.rounds)
        starts = np.r_[0, ends[:-1]]
        drafting = arms >= 0
        mean = self.mean[starts]
        best = (mean[np.arange(len(arms)), arms] >= mean.max(1) - 1e-9) & drafting
        regret = points - np.searchsorted(self.ends, ends[points - 1], "right")
        return Outcome(
            regret=tuple(regret.tolist()),
            tokens=int(ends[-1]),
            cost=cost / float(ends[-1]),
            fixed_length=float(self.fixed_length),
            fixed_cost=self.fixed_cost,
            switches=int((arms[1:] != arms[:-1]).sum()),
            best_share=float(best.mean()),
            cpu_s=spent,
        )

    def _selector(self, contender: Contender, k: int) -> Selector:
        names, rng = [f"arm {i}" for i in range(self.setting.world.arms)], np.random.default_rng((self.seed, 11))
        lengths = [k] * len(names)
        if contender.name == "oracle-static":
            return OracleStatic(names, lengths, rng, self.best)
        if contender.name == "oracle-dynamic":
            return OracleDynamic(names, lengths, rng, self._best_now(k))
        return make_selector(contender.name, names, lengths, rng, contender.options)

    def _best_now(self, k: int) -> Ints:
        """[positions] the arm with the most expected tokens per cost, from the means of the next k positions."""
        ahead = np.concatenate([self.mean, np.zeros((k, self.mean.shape[1]))])
        going, tokens = np.ones_like(self.mean), np.ones_like(self.mean)
        for j in range(k):
            going *= ahead[j : j + len(self.mean)]
            tokens += going
        rate = tokens / self.cost[:, k]
        best: Ints = np.where(rate.max(1) > 1, rate.argmax(1), -1)
        return best

    def _rounds(self, selector: Selector, k: int) -> tuple[Ints, Ints, float]:
        """[rounds] arm, [rounds] tokens so far, and the whole cost."""
        arms, ends, cost, s, told = [], [], 0.0, 0, 0
        full, bandit = selector.information == "full", selector.information == "bandit"
        times, evaluation, runs = self.cost[:, : k + 1], self.setting.world.costs()[1], self.runs
        for _ in range(self.setting.rounds):
            arm = selector.choose()
            drafted = selector.draft_length(arm) if arm >= 0 else 0
            accepted = min(int(runs[s, arm]), drafted) if drafted else 0
            cost += times[arm, drafted] if drafted else 1.0
            divergence = acceptance = None
            if bandit and drafted:
                divergence = float(self.sums[s + drafted, arm] - self.sums[s, arm]) / drafted
            s += accepted + 1
            if full and selector.due():
                acceptance, told = self.shown[told:s], s
                cost += evaluation
            selector.update(
                RoundFeedback(
                    arm, drafted, accepted, divergence, acceptance, acceptance, round_ms=times, feedback_ms=evaluation
                )
            )
            arms.append(arm)
            ends.append(s)
        return np.array(arms), np.array(ends), cost


def checkpoints(rounds: int) -> Ints:
    """Rounds at which regret is kept, the last one among them."""
    points: Ints = np.unique(np.linspace(1, rounds, min(POINTS, rounds)).astype(int))
    return points
