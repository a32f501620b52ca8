"""Simulation: the very selectors of the engine on synthetic or recorded worlds, against the best fixed arm.

Worlds are in worlds.py and recorded.py, how a text is written in tape.py; here are many texts, means and intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from typing import Any

import numpy as np

from specdemo.evaluation.recorded import Recording
from specdemo.evaluation.tape import Contender, Outcome, Setting, Signal, checkpoints, contender
from specdemo.evaluation.texts import measured, tapes
from specdemo.evaluation.worlds import Floats, World
from specdemo.types import SpecdemoError

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
        tokens_per_second: at measured costs, in recorded worlds; their curves have one point, the end of the text.
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
    tokens_per_second: float | None
    rounds: list[int]
    regret: list[float]
    regret_lows: list[float]
    regret_highs: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Plain dict of JSON-able values."""
        return asdict(self)


def simulate(
    world: World | Recording,
    selectors: Sequence[str] = SELECTORS,
    rounds: int = 300,
    seeds: int = 20,
    k: int = 5,
    signal: Signal = "soft",
    processes: int = 1,
) -> list[Result]:
    """Let selectors write the same texts.

    Args:
        world: see worlds.py; or recorded: every text to its end, ``rounds`` and ``seeds`` at most, no ``signal`` but
            what was recorded. ``selectors``: as :func:`contender` reads them, also "oracle-static", "oracle-dynamic".
        rounds: of every text. ``seeds``: texts, at least 2. ``k``: draft length.
        signal: what a position reveals: "soft", a = 1 - TV as when sampling, or "bits", match or not, as at
            temperature 0.
        processes: how many work at once; the results do not depend on it.

    Raises:
        SpecdemoError: an unknown selector or option, or a number out of range.
    """
    for name, value, least in (("rounds", rounds, 1), ("seeds", seeds, 2), ("k", k, 1), ("processes", processes, 1)):
        if value < least:
            raise SpecdemoError(f"{name} is {value}; it must be at least {least}.")
    if signal not in ("soft", "bits"):
        raise SpecdemoError(f"signal is {signal!r}; it is 'soft' or 'bits'.")
    setting = Setting(world, tuple(contender(text) for text in selectors), rounds, k, signal)
    if isinstance(world, Recording):
        seeds, setting = min(seeds, len(world.answers)), replace(setting, k=min(k, world.k))
        if seeds < 2 or setting.longest > setting.k:
            raise SpecdemoError(
                f"{seeds} answers are recorded, with drafts of {world.k}; it takes at least two, and drafts no longer."
            )
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


def outcomes(setting: Setting, seeds: Sequence[int]) -> list[list[Outcome]]:
    """[contender][seed] every contender on the texts of some seeds."""
    found: list[list[Outcome]] = [[] for _ in setting.contenders]
    positions = (setting.rounds + 1) * (setting.longest + 1)
    at_once = max(1, 2_000_000 // (positions * setting.world.arms))  # texts in memory
    for first in range(0, len(seeds), at_once):
        batch = tapes(setting, seeds[first : first + at_once])
        for row, c in zip(found, setting.contenders, strict=True):
            row.extend(tape.play(c) for tape in batch)
    return found


def summarise(setting: Setting, contender: Contender, found: Sequence[Outcome]) -> Result:
    """Means and intervals over seeds."""
    curve, half = _interval(np.array([o.regret for o in found]))
    gain, gain_half = _interval(np.array([100 * (o.fixed_cost / o.cost - 1) for o in found]))
    tokens, rounds = sum(o.tokens for o in found), sum(o.rounds for o in found)
    per_cost = tokens / sum(o.cost * o.tokens for o in found)
    forward_ms = measured(setting.world).forward_ms if isinstance(setting.world, Recording) else None
    return Result(
        selector=contender.label,
        world=setting.world.name,
        arms=setting.world.arms,
        seeds=len(found),
        regret_mean=float(curve[-1]),
        regret_low=float(curve[-1] - half[-1]),
        regret_high=float(curve[-1] + half[-1]),
        tokens_per_round=tokens / rounds,
        tokens_per_cost=per_cost,
        gain=float(gain),
        gain_low=float(gain - gain_half),
        gain_high=float(gain + gain_half),
        fixed_tokens_per_round=float(np.mean([o.fixed_length for o in found])),
        fixed_tokens_per_cost=float(np.mean([1 / o.fixed_cost for o in found])),
        switches=float(np.mean([o.switches for o in found])),
        best_arm_share=float(np.mean([o.best_share for o in found])),
        us_per_round=1e6 * sum(o.cpu_s for o in found) / rounds,
        tokens_per_second=1e3 * per_cost / forward_ms if forward_ms else None,
        rounds=[round(rounds / len(found))] if forward_ms else checkpoints(setting.rounds).tolist(),
        regret=curve.tolist(),
        regret_lows=(curve - half).tolist(),
        regret_highs=(curve + half).tolist(),
    )


def table(results: Sequence[Result]) -> str:
    """Results as text, one line each."""
    width = max(len("selector"), *(len(r.selector) for r in results))
    head = "arms     regret in rounds (95 %)  tokens/round  tokens/cost  against fixed  switches  best"
    head += "  tokens/s" if any(r.tokens_per_second for r in results) else ""
    return "\n".join(
        [f"{'selector':<{width}} {head}"]
        + [
            f"{r.selector:<{width}} {r.arms:>4} {r.regret_mean:>9.1f} ({r.regret_low:>6.1f} to {r.regret_high:>6.1f})"
            f" {r.tokens_per_round:>13.2f} {r.tokens_per_cost:>12.2f} {r.gain:>+12.1f} % {r.switches:>9.0f}"
            f" {100 * r.best_arm_share:>3.0f} %" + (f"{r.tokens_per_second:>10.1f}" if r.tokens_per_second else "")
            for r in results
        ]
    )


def _interval(values: Floats) -> tuple[Floats, Floats]:
    """Mean over the first axis, and half the width of its 95 % interval."""
    return values.mean(0), 1.96 * values.std(0, ddof=1) / np.sqrt(len(values))
