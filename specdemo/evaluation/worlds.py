"""Synthetic worlds: how probable it is, at every position of a text, that each of N arms would be accepted.

A world gives every arm a mean acceptance at every position. Around it the acceptance a = 1 - TV(p, q) follows a Beta
law of concentration 2 (standard deviation about 0.28), and a draft of the arm is accepted there with probability a.
Arms are correlated through a Gaussian copula: what is easy for one is easy for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from specdemo.types import SpecdemoError

Floats = NDArray[np.float64]

MOST_ARMS = 256
CONCENTRATION, CORRELATION = 2.0, 0.5
_LEVELS, _QUANTILES = 100, 512  # resolution of the table of Beta quantiles


@dataclass(frozen=True, slots=True)
class World:
    """What is simulated.

    Attributes:
        name: key of ``WORLDS``. ``arms``: N.
        gap: how far the best arm is ahead, in mean acceptance. ``base``: mean acceptance of the others.
        segment: tokens between changes ("domains", "changes"); "drift" takes ten of them for a full turn.
        cost: of drafting a token, in target forwards: one for every arm, or one for each; the world's own if empty.
        evaluation: cost of evaluating all arms once, in target forwards; the world's own if None.
    """

    name: str = "stationary"
    arms: int = 21
    gap: float = 0.1
    base: float = 0.6
    segment: int = 60
    cost: tuple[float, ...] = ()
    evaluation: float | None = None

    def __post_init__(self) -> None:
        if self.name not in WORLDS:
            raise SpecdemoError(f"There is no world {self.name!r}. Choose one of: {', '.join(WORLDS)}.")
        least = {"domains": 3, "costs": 4}.get(self.name, 1)
        if not least <= self.arms <= MOST_ARMS:
            raise SpecdemoError(f"arms is {self.arms}; the world {self.name!r} has {least} to {MOST_ARMS} of them.")
        if not (0 < self.base < 1 and self.gap >= 0 and self.base + self.gap < 1):
            raise SpecdemoError(
                f"base is {self.base:g} and gap {self.gap:g}; base and base + gap must lie between 0 and 1."
            )
        if self.segment < 1:
            raise SpecdemoError(f"segment is {self.segment}; it must be at least 1 token.")
        if len(self.cost) not in (0, 1, self.arms) or min(self.cost, default=0) < 0 or (self.evaluation or 0) < 0:
            raise SpecdemoError(
                f"Costs are at least 0, and there is one for every arm, or one for each of {self.arms}."
            )

    def costs(self) -> tuple[Floats, float]:
        """[arms] cost of drafting a token, and cost of evaluating all arms once, in target forwards."""
        unequal = self.name == "costs"
        own = [0.0005] + [0.03] * (self.arms - 3) + [0.10, 0.25] if unequal else [0.03]
        evaluation = (0.40 if unequal else 0.05) if self.evaluation is None else self.evaluation
        return np.broadcast_to(np.array(self.cost or own), self.arms), evaluation


@dataclass(frozen=True, slots=True)
class Texts:
    """One text per seed. ``mean``, ``soft``: [seeds, positions, arms] acceptance, expected and realised; ``bits``:
    whether a draft would be accepted there."""

    mean: Floats
    soft: Floats
    bits: NDArray[np.bool_]


def write(world: World, seeds: Sequence[int], positions: int) -> Texts:
    """The texts of some seeds; a seed's text does not depend on the others."""
    means, latent = [], []
    for seed in seeds:
        rng = np.random.default_rng((seed, world.arms, 7))
        means.append(np.clip(WORLDS[world.name](world, rng, positions), 0.02, 0.98))
        shared, own = rng.standard_normal((2, positions, 1)), rng.standard_normal((2, positions, world.arms))
        latent.append(np.sqrt(CORRELATION) * shared + np.sqrt(1 - CORRELATION) * own)
    mean, uniform = np.array(means), _normal_cdf(np.array(latent))
    level = np.rint(mean * _LEVELS).astype(int)
    quantile = np.minimum((uniform[:, 0] * _QUANTILES).astype(int), _QUANTILES - 1)
    soft = _beta_quantiles()[level, quantile]
    return Texts(mean, soft, uniform[:, 1] < soft)


def _normal_cdf(z: Floats) -> Floats:
    """The normal distribution function, to 3e-4."""
    cdf: Floats = 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    return cdf


@cache
def _beta_quantiles() -> Floats:
    """[levels, quantiles] of Beta laws by their means, each row with exactly its mean.

    Integrated over v = logit(x), where the density x^a (1 - x)^b has no poles.
    """
    table = np.zeros((_LEVELS + 1, _QUANTILES))
    q = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    for row in range(1, _LEVELS):
        mean = row / _LEVELS
        a, b = CONCENTRATION * mean, CONCENTRATION * (1 - mean)
        v = np.linspace(-30 / a, 30 / b, 4000)
        log_density = -a * np.logaddexp(0, -v) - b * np.logaddexp(0, v)
        cdf = np.cumsum(np.exp(log_density - log_density.max()))
        x = np.interp(q, cdf / cdf[-1], np.exp(-np.logaddexp(0, -v)))
        table[row] = np.clip(x + mean - x.mean(), 0, 1)
    table[-1] = 1
    return table


# --------------------------------------------------------------------------- means [positions, arms], world by world


def stationary(world: World, rng: np.random.Generator, positions: int) -> Floats:
    """One arm is ahead by ``gap``, from beginning to end."""
    mean = np.full((positions, world.arms), world.base)
    mean[:, rng.integers(world.arms)] += world.gap
    return mean


def markov(world: World, rng: np.random.Generator, positions: int) -> Floats:
    """Four hidden contexts of about 8 tokens, in each of which other arms are good; one arm is ahead on average."""
    levels = np.clip(rng.normal(world.base, 0.15, (4, world.arms)), 0.1, 0.95)
    levels += world.base - levels.mean(0)
    levels[:, rng.integers(world.arms)] += world.gap
    jumps = np.flatnonzero(rng.random(positions) > 0.88)
    state = np.full(positions, rng.integers(4))
    for start, new in zip(jumps, rng.integers(4, size=len(jumps)), strict=True):
        state[start:] = new
    return np.clip(levels, 0.1, 0.95)[state]


def domains(world: World, rng: np.random.Generator, positions: int) -> Floats:
    """Two domains in turns, each with a specialist (base + 0.18, at home), and a generalist (base + 0.02); all others,
    and specialists abroad, about base - 0.1."""
    order = rng.permutation(world.arms)
    level = world.base - 0.1 + rng.uniform(-0.06, 0.06, world.arms)
    level[order[2]] = world.base + 0.02
    mean = np.tile(level, (positions, 1))
    domain = np.arange(positions) // world.segment % 2
    mean[np.arange(positions), order[domain]] = world.base + 0.18
    return mean


def changes(world: World, rng: np.random.Generator, positions: int) -> Floats:
    """Another arm is ahead, by ``gap``, after every ``segment`` tokens."""
    mean = np.full((positions, world.arms), world.base)
    best = rng.integers(world.arms, size=positions // world.segment + 1)
    mean[np.arange(positions), best[np.arange(positions) // world.segment]] += world.gap
    return mean


def drift(world: World, rng: np.random.Generator, positions: int) -> Floats:
    """Every arm swings slowly around ``base`` by ``gap``, each at its own time."""
    turn = np.arange(positions)[:, None] / (10 * world.segment) + rng.random(world.arms)
    swing: Floats = world.base + world.gap * np.sin(2 * np.pi * turn)
    return swing


def costs(world: World, rng: np.random.Generator, positions: int) -> Floats:
    """Unequal costs: a free arm that is excellent on a quarter of the text (it copies) and bad elsewhere, cheap heads
    (0.45 to 0.6, one 0.68), a middling and a large model (0.75, 0.87) that cost more than they bring."""
    heads = rng.uniform(0.45, 0.60, world.arms - 3)
    heads[rng.integers(len(heads))] = 0.68
    mean = np.tile(np.r_[0.10, heads, 0.75, 0.87], (positions, 1))
    start = int(rng.exponential(60))
    while start < positions:
        length = int(rng.geometric(1 / 25))
        mean[start : start + length, 0] = 0.95
        start += length + int(rng.exponential(75))
    return mean


WORLDS: dict[str, Callable[[World, np.random.Generator, int], Floats]] = {
    f.__name__: f for f in (stationary, markov, domains, changes, drift, costs)
}
