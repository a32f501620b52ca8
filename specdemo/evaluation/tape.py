"""One text, synthetic or recorded, written by one selector after another: what the engine does, without the models.

A round with arm i and draft length k at position s accepts the arm's run there (synthetic: the leading run of its
``bits``), at most k, commits one token more, and the selector learns what it would learn in the engine. Costs are in
target forwards: a synthetic round takes ``1 + 0.02 k + c_i k``, a recorded one what was measured, plain decoding 1, and
an evaluation of all arms its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specdemo.calibration import Calibration
from specdemo.evaluation.recorded import Recording
from specdemo.evaluation.worlds import Floats, World
from specdemo.selectors import make_selector, read_selector
from specdemo.selectors.oracle import OracleDynamic, OracleStatic
from specdemo.times import Mean
from specdemo.types import RoundFeedback, Selector, SpecdemoError

Signal = Literal["soft", "bits"]
Ints = NDArray[np.int64]

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

    world: World | Recording
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
class Costs:
    """In target forwards. ``round``: [arms, longest draft + 1], column 0 is plain decoding; ``evaluation``: of all arms
    at once, and per position; ``forward_ms``: of a target forward, if it was measured."""

    round: Floats
    evaluation: tuple[float, float]
    forward_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """What every arm would do at every position of a text, and how well each does alone.

    Attributes:
        runs: [positions, arms] accepted tokens of a draft that begins there. ``shown``: what the selector is told.
        mean: [positions, arms] what the best arm is called by. ``ahead``: expected tokens of a round of the longest
            draft. ``end``: the last round begins before this position.
        alone: [arms] tokens per round of each arm with its longest draft.
        families: of the arms, if estimates need calibration by what drafts realise.
        name: of the text, for the generators of selectors. ``prompt``: token ids, if there is one.
    """

    runs: Ints
    shown: Floats
    mean: Floats
    ahead: Floats
    end: int
    alone: Floats
    name: int
    lengths: tuple[int, ...]
    families: tuple[str, ...] = ()
    prompt: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """One text of one contender. ``regret`` at the checkpoints, in rounds; ``cost`` and ``fixed_cost`` per token."""

    regret: tuple[float, ...]
    rounds: int
    tokens: int
    cost: float
    fixed_length: float
    fixed_cost: float
    switches: int
    best_share: float
    cpu_s: float


class Tape:
    """One text, and what every arm would do at every position of it."""

    def __init__(self, setting: Setting, text: Text, costs: Costs) -> None:
        self.setting, self.text, self.costs = setting, text, costs
        self.sums = np.concatenate([np.zeros((1, len(text.lengths))), text.shown.cumsum(0)])
        lengths = np.minimum(setting.k, text.lengths)
        self.best = int(text.alone.argmax())
        self.fixed_length = text.alone[self.best]
        own = costs.round[np.arange(len(lengths)), lengths]
        self.fixed_cost = min(1.0, float((own / text.alone).min()))  # per token
        ends, s, run = [], 0, text.runs[:, self.best].tolist()
        while s < text.end:
            s += min(run[s], int(lengths[self.best])) + 1
            ends.append(s)
        self.ends = np.array(ends)

    def play(self, contender: Contender) -> Outcome:
        """Let a contender write the text."""
        begin = time.process_time()
        k = self.setting.length(contender)
        arms, ends, cost = self._rounds(self._selector(contender, k), k)
        spent = time.process_time() - begin
        points = np.array([len(arms)]) if self.costs.forward_ms else checkpoints(self.setting.rounds)
        mean, drafting = self.text.mean[np.r_[0, ends[:-1]]], arms >= 0
        best = (mean[np.arange(len(arms)), arms] >= mean.max(1) - 1e-9) & drafting
        regret = points - np.searchsorted(self.ends, ends[points - 1], "right")
        return Outcome(
            regret=tuple(regret.tolist()),
            rounds=len(arms),
            tokens=int(ends[-1]),
            cost=cost / float(ends[-1]),
            fixed_length=float(self.fixed_length),
            fixed_cost=self.fixed_cost,
            switches=int((arms[1:] != arms[:-1]).sum()),
            best_share=float(best.mean()),
            cpu_s=spent,
        )

    def _selector(self, contender: Contender, k: int) -> Selector:
        names = self.text.names or tuple(f"arm {i}" for i in range(len(self.text.lengths)))
        lengths, rng = [min(k, own) for own in self.text.lengths], np.random.default_rng((self.text.name, 11))
        if contender.name == "oracle-static":
            return OracleStatic(names, lengths, rng, self.best)
        if contender.name == "oracle-dynamic":
            return OracleDynamic(names, lengths, rng, self._best_now(lengths))
        return make_selector(contender.name, names, lengths, rng, contender.options, self.text.prompt)

    def _best_now(self, lengths: Sequence[int]) -> Ints:
        """[positions] the arm with the most expected tokens per cost."""
        rate = self.text.ahead / self.costs.round[np.arange(len(lengths)), lengths]
        best: Ints = np.where(rate.max(1) > 1, rate.argmax(1), -1)
        return best

    def _rounds(self, selector: Selector, k: int) -> tuple[Ints, Ints, float]:
        """[rounds] arm, [rounds] tokens so far, and the whole cost."""
        arms, ends, cost, s = list[int](), list[int](), 0.0, 0
        full, bandit = selector.information == "full", selector.information == "bandit"
        times, runs, judge = self.costs.round[:, : k + 1], self.text.runs, _Judge(self.text, self.costs)
        last = len(self.text.shown) - 1  # where nothing can be drafted: the target's own token
        while s < self.text.end and len(arms) < self.setting.rounds:
            arm = selector.choose()
            drafted = min(selector.draft_length(arm), last - s) if arm >= 0 else 0
            accepted = min(int(runs[s, arm]), drafted) if drafted else 0
            cost += times[arm, drafted] if drafted else 1.0
            divergence = acceptance = None
            if bandit and drafted:
                divergence = float(self.sums[s + drafted, arm] - self.sums[s, arm]) / drafted
            judge.drafted(arm, s, drafted, accepted)
            s += accepted + 1
            if full and s < self.text.end and selector.due():
                acceptance = judge.judge(s)
            if drafted or not bandit:
                known = (divergence, acceptance, acceptance, judge.factors(), times, judge.price.value)
                selector.update(RoundFeedback(arm, drafted, accepted, *known))
            arms.append(arm)
            ends.append(s)
        return np.array(arms), np.array(ends), cost + judge.spent


class _Judge:
    """Evaluations of all arms: what they say, what they cost, and what drafts realise of it."""

    def __init__(self, text: Text, costs: Costs) -> None:
        self.text, self.costs, self.told, self.spent = text, costs, 0, 0.0
        self.price = Mean(sum(costs.evaluation))
        self.calibration = Calibration(text.lengths, text.families) if text.families else None

    def drafted(self, arm: int, position: int, drafted: int, accepted: int) -> None:
        """A draft was accepted so far."""
        if self.calibration and drafted:
            self.calibration.drafted(
                arm, position, np.array(np.arange(min(accepted + 1, drafted)) < accepted, dtype=np.float64)
            )

    def judge(self, end: int) -> Floats:
        """[positions, arms] acceptance of all positions since the last time."""
        first, self.told = self.told, end
        once, position = self.costs.evaluation
        cost = once + position * (end - first)
        self.price.add(cost)
        self.spent += cost
        if self.calibration:
            self.calibration.judged(first, self.text.shown[first:end])
        return self.text.shown[first:end]

    def factors(self) -> Floats | None:
        """Of acceptance by depth, where drafts fall behind their estimates."""
        return self.calibration.factors() if self.calibration else None


def checkpoints(rounds: int) -> Ints:
    """Rounds at which regret is kept, the last one among them."""
    points: Ints = np.unique(np.linspace(1, rounds, min(POINTS, rounds)).astype(int))
    return points
