"""Simulation: the very selectors of the engine on synthetic worlds, against the best fixed arm.

Only the models are missing: a round with arm i and draft length k at position s accepts the leading run of the arm's
``bits`` there (at most k), commits one token more, and the selector learns what it would learn in the engine. Costs are
in target forwards: a round takes ``1 + 0.02 k + c_i k``, plain decoding 1, and an evaluation of all arms its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from specdemo.estimators import VirtualRounds
from specdemo.evaluation.worlds import Floats, Texts, World, write
from specdemo.selectors import make_selector
from specdemo.selectors.oracle import OracleDynamic, OracleStatic
from specdemo.types import RoundFeedback, Selector, SpecdemoError

Signal = Literal["soft", "bits"]
Ints = NDArray[np.int64]

VERIFY = 0.02  # cost of scoring one more row, in target forwards
POINTS = 50  # of a regret curve
SELECTORS = (
    "random",
    "metasd-ucb",
    "metasd-halving",
    "metasd-exp3",
    "discounted-ucb",
    "sliding-ucb",
    "ucbspec",
    "exp3spec",
    "hedgespec",
    "hedgespec:signal=vr",
    "hedgespec:signal=vr:discount=0.95",
    "speed",
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A selector with its options; ``k``: its longest draft, None for everybody's."""

    label: str
    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    k: int | None = None


def contender(text: str) -> Contender:
    """ "name:option=value:option=value", the value as JSON if it is JSON; ``k`` is its longest draft.

    Raises:
        SpecdemoError: it reads otherwise.
    """
    name, *pairs = text.split(":")
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise SpecdemoError(f"The option {pair!r} of the selector {text!r} should be NAME=VALUE.")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    k = options.pop("k", None)
    if k is not None and (not isinstance(k, int) or k < 1):
        raise SpecdemoError(f"k of the selector {text!r} is {k!r}; it must be at least 1.")
    return Contender(text, name, options, k)


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


@dataclass(frozen=True, slots=True)
class Result:
    """A contender on a world: means over seeds, 95 % intervals (normal).

    Attributes:
        selector: as asked for. ``world``, ``arms``, ``seeds``: where.
        rounds: checkpoints. ``regret``, ``regret_lows``, ``regret_highs``: curve of the stopping-time regret: rounds
            minus those of the best fixed arm (longest draft k, chosen in hindsight, per text) for the same tokens.
        regret_mean, regret_low, regret_high: the end of the curve.
        tokens_per_round, tokens_per_cost: a cost of 1 is a target forward.
        gain, gain_low, gain_high: tokens per cost against the best fixed arm (or plain decoding) in time, per cent.
        fixed_tokens_per_round, fixed_tokens_per_cost: what the best fixed arm of each kind reaches.
        switches: rounds with another arm than the last. ``best_arm_share``: share of rounds with an arm whose mean
            acceptance is the largest at that position.
        us_per_round: processor time of the simulation, mostly the selector's.
    """

    selector: str
    world: str
    arms: int
    seeds: int
    regret_mean: float
    regret_low: float
    regret_high: float
    tokens_per_round: float
    tokens_per_cost: float
    gain: float
    gain_low: float
    gain_high: float
    fixed_tokens_per_round: float
    fixed_tokens_per_cost: float
    switches: float
    best_arm_share: float
    us_per_round: float
    rounds: list[int]
    regret: list[float]
    regret_lows: list[float]
    regret_highs: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of JSON-able values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated besides the world. Attributes as the arguments of :func:`simulate`."""

    world: World
    contenders: tuple[Contender, ...]
    rounds: int
    k: int
    signal: Signal
    evaluation: float

    def length(self, contender: Contender) -> int:
        """Longest draft of a contender."""
        return contender.k or self.k

    @property
    def longest(self) -> int:
        """Longest draft of all."""
        return max([self.k, *(self.length(c) for c in self.contenders)])


def simulate(
    world: World,
    selectors: Sequence[str] = SELECTORS,
    rounds: int = 300,
    seeds: int = 20,
    k: int = 5,
    signal: Signal = "soft",
    evaluation: float | None = None,
    processes: int = 1,
) -> list[Result]:
    """Let selectors write the same texts.

    Args:
        world: see worlds.py. ``selectors``: as :func:`contender` reads them, also "oracle-static", "oracle-dynamic".
        rounds: of every text. ``seeds``: texts, at least 2. ``k``: draft length.
        signal: what a position reveals: "soft", a = 1 - TV as when sampling, or "bits", match or not, as at
            temperature 0.
        evaluation: cost of evaluating all arms once, in target forwards; None for the world's.
        processes: how many work at once; the results do not depend on it.

    Raises:
        SpecdemoError: an unknown selector or option, or a number out of range.
    """
    for name, value, least in (("rounds", rounds, 1), ("seeds", seeds, 2), ("k", k, 1), ("processes", processes, 1)):
        if value < least:
            raise SpecdemoError(f"{name} is {value}; it must be at least {least}.")
    if signal not in ("soft", "bits"):
        raise SpecdemoError(f"signal is {signal!r}; it is 'soft' or 'bits'.")
    cost = world.costs()[1] if evaluation is None else evaluation
    setting = Setting(world, tuple(contender(text) for text in selectors), rounds, k, signal, cost)
    blocks = [block.tolist() for block in np.array_split(np.arange(seeds), processes) if len(block)]
    if len(blocks) == 1:
        parts = [outcomes(setting, blocks[0])]
    else:
        with ProcessPoolExecutor(len(blocks), get_context("spawn")) as pool:
            parts = list(pool.map(outcomes, [setting] * len(blocks), blocks))
    return [
        summarise(setting, c, [outcome for part in parts for outcome in part[i]])
        for i, c in enumerate(setting.contenders)
    ]


def outcomes(setting: Setting, seeds: Sequence[int], at_once: int = 8) -> list[list[Outcome]]:
    """[contender][seed] every contender on the texts of some seeds."""
    found: list[list[Outcome]] = [[] for _ in setting.contenders]
    positions = (setting.rounds + 1) * (setting.longest + 1)
    for first in range(0, len(seeds), at_once):
        group = seeds[first : first + at_once]
        texts = write(setting.world, group, positions)
        tapes = _tapes(setting, texts, group)
        for row, c in zip(found, setting.contenders, strict=True):
            row.extend(tape.play(c) for tape in tapes)
    return found


def _tapes(setting: Setting, texts: Texts, seeds: Sequence[int]) -> list[_Tape]:
    """One per text; what all texts share is computed for all at once."""
    count, positions, arms = texts.bits.shape
    runs = np.zeros((positions + 1, count, arms), dtype=np.int64)
    for t in range(positions - 1, -1, -1):
        runs[t] = (runs[t + 1] + 1) * texts.bits[:, t]
    ledger = VirtualRounds([setting.k] * count * arms)
    rounds = np.cumsum([ledger.push(texts.soft[:, t].ravel()) for t in range(positions)], axis=0)
    written = (rounds < setting.rounds).sum(0).reshape(count, arms)  # tokens of each arm alone in that many rounds
    return [_Tape(setting, texts, i, seed, runs[:, i], written[i]) for i, seed in enumerate(seeds)]


class _Tape:
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
        checkpoints = _checkpoints(self.setting.rounds)
        starts = np.r_[0, ends[:-1]]
        drafting = arms >= 0
        mean = self.mean[starts]
        best = (mean[np.arange(len(arms)), arms] >= mean.max(1) - 1e-9) & drafting
        regret = checkpoints - np.searchsorted(self.ends, ends[checkpoints - 1], "right")
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
        times, evaluation, runs = self.cost[:, : k + 1], self.setting.evaluation, self.runs
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
                RoundFeedback(arm, drafted, accepted, divergence, acceptance, acceptance, times, evaluation)
            )
            arms.append(arm)
            ends.append(s)
        return np.array(arms), np.array(ends), cost


def _checkpoints(rounds: int) -> Ints:
    """Rounds at which regret is kept, the last one among them."""
    points: Ints = np.unique(np.linspace(1, rounds, min(POINTS, rounds)).astype(int))
    return points


def summarise(setting: Setting, contender: Contender, found: Sequence[Outcome]) -> Result:
    """Means and intervals over seeds."""
    curve, half = _interval(np.array([o.regret for o in found]))
    gain, gain_half = _interval(np.array([100 * (o.fixed_cost / o.cost - 1) for o in found]))
    tokens = sum(o.tokens for o in found)
    return Result(
        selector=contender.label,
        world=setting.world.name,
        arms=setting.world.arms,
        seeds=len(found),
        regret_mean=float(curve[-1]),
        regret_low=float(curve[-1] - half[-1]),
        regret_high=float(curve[-1] + half[-1]),
        tokens_per_round=tokens / (setting.rounds * len(found)),
        tokens_per_cost=tokens / sum(o.cost * o.tokens for o in found),
        gain=float(gain),
        gain_low=float(gain - gain_half),
        gain_high=float(gain + gain_half),
        fixed_tokens_per_round=float(np.mean([o.fixed_length for o in found])),
        fixed_tokens_per_cost=float(np.mean([1 / o.fixed_cost for o in found])),
        switches=float(np.mean([o.switches for o in found])),
        best_arm_share=float(np.mean([o.best_share for o in found])),
        us_per_round=1e6 * sum(o.cpu_s for o in found) / (setting.rounds * len(found)),
        rounds=_checkpoints(setting.rounds).tolist(),
        regret=curve.tolist(),
        regret_lows=(curve - half).tolist(),
        regret_highs=(curve + half).tolist(),
    )


def _interval(values: Floats) -> tuple[Floats, Floats]:
    """Mean over the first axis, and half the width of its 95 % interval."""
    return values.mean(0), 1.96 * values.std(0, ddof=1) / np.sqrt(len(values))
