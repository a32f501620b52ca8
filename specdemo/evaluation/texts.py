"""Texts of a world, synthetic or recorded, ready to be played."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.estimators import VirtualRounds
from specdemo.evaluation.recorded import Recording, joined, pieces
from specdemo.evaluation.tape import Costs, Setting, Tape, Text
from specdemo.evaluation.worlds import Floats, Texts, World, write

VERIFY = 0.02  # cost of scoring one more row of a synthetic world, in target forwards


def tapes(setting: Setting, seeds: Sequence[int]) -> list[Tape]:
    """Texts of some seeds; of a recorded world, the answers of these numbers."""
    if isinstance(setting.world, Recording):
        costs = measured(setting.world)
        return [Tape(setting, recorded(setting, setting.world, i), costs) for i in seeds]
    positions = (setting.rounds + 1) * (setting.longest + 1)
    return synthetic(setting, setting.world, write(setting.world, seeds, positions), seeds)


def synthetic(setting: Setting, world: World, texts: Texts, seeds: Sequence[int]) -> list[Tape]:
    """One per text; what all texts share is computed for all at once."""
    count, positions, arms = texts.bits.shape
    runs = np.zeros((positions + 1, count, arms), dtype=np.int64)
    for t in range(positions - 1, -1, -1):
        runs[t] = (runs[t + 1] + 1) * texts.bits[:, t]
    ledger = VirtualRounds([setting.k] * count * arms)
    rounds = np.cumsum([ledger.push(texts.soft[:, t].ravel()) for t in range(positions)], axis=0)
    written = 1 + (rounds < setting.rounds - 1e-9).sum(0).reshape(count, arms)  # tokens of each arm in so many rounds
    drafting, evaluation = world.costs()
    costs = Costs(1 + (VERIFY + drafting)[:, None] * np.arange(setting.longest + 1), (evaluation, 0.0))
    return [
        Tape(
            setting,
            Text(
                runs=runs[:, i],
                shown=texts.soft[i] if setting.signal == "soft" else texts.bits[i].astype(float),
                mean=texts.mean[i],
                ahead=_expected(texts.mean[i], setting.longest),
                end=positions - setting.k,
                alone=written[i] / setting.rounds,
                name=seed,
                lengths=(setting.longest,) * arms,
            ),
            costs,
        )
        for i, seed in enumerate(seeds)
    ]


def _expected(mean: Floats, k: int) -> Floats:
    """[positions, arms] tokens of a round, from the means of the next k positions."""
    ahead = np.concatenate([mean, np.zeros((k, mean.shape[1]))])
    going, tokens = np.ones_like(mean), np.ones_like(mean)
    for j in range(k):
        going *= ahead[j : j + len(mean)]
        tokens += going
    return tokens


def measured(world: Recording) -> Costs:
    """Costs of a recorded world."""
    rounds, (once, position) = world.round_ms(), world.evaluation_ms()
    forward = float(rounds[0, 0])
    return Costs(rounds / forward, (once / forward, position / forward), forward)


def recorded(setting: Setting, world: Recording, i: int) -> Text:
    """Text i of a recorded world, and how many rounds each arm really needs for it."""
    parts = pieces(world, i)
    runs, shown, mean = joined(parts, setting.k)
    lengths = np.minimum(world.lengths, setting.k)
    rounds = [_rounds(runs[:, arm].tolist(), int(lengths[arm])) for arm in range(world.arms)]
    return Text(
        runs=runs,
        shown=shown,
        mean=mean,
        ahead=np.minimum(runs, lengths) + 1.0,
        end=len(runs),
        alone=len(runs) / np.array(rounds),
        name=i,
        lengths=tuple(lengths.tolist()),
        families=world.families,
        prompt=tuple(parts[0][0].prompt.tolist()),
        names=world.names,
    )


def best_arms(world: Recording) -> list[str]:
    """The arm with the most tokens per second of every recorded answer, with its longest draft, at measured costs."""
    costs, setting = measured(world), Setting(world, (), 1, world.k, "soft")
    own = costs.round[np.arange(world.arms), world.lengths]
    alone = [recorded(setting, world, i).alone for i in range(len(world.answers))]
    return [world.names[int((lengths / own).argmax())] for lengths in alone]


def _rounds(run: Sequence[int], k: int) -> int:
    s = rounds = 0
    while s < len(run):
        s, rounds = s + min(run[s], k) + 1, rounds + 1
    return rounds
