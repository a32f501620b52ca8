"""EXP3 (Auer, Cesa-Bianchi, Freund, Schapire 2002) on block divergence: a baseline of MetaSD (arXiv 2604.05417)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.selectors.bandit import Bandit
from specdemo.selectors.base import Floats, draw, within


class MetaSDEXP3(Bandit):
    """Bandit without assumptions: exponential weights of importance-weighted rewards, plus uniform exploration.

    ``p_i = (1 - g) w_i / sum w + g / N`` and ``w_I <- w_I exp(g * reward / (N p_I))`` for the arm I that drafted, with
    ``g = min(1, sqrt(N ln N / ((e - 1) horizon)))``.

    Args:
        horizon: rounds that the rate is tuned for (MetaSD does not publish its parameters).
        reward: "bd", block divergence, or "be", block efficiency.
    """

    kind: ClassVar[str] = "weight"

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        horizon: int = 300,
        reward: str = "bd",
    ) -> None:
        super().__init__(arms, lengths, rng, reward)
        within("horizon", horizon, 1)
        n = max(1, len(self.arms))
        self.mix = min(1.0, math.sqrt(n * math.log(n) / ((math.e - 1) * horizon)))
        self.gain = np.zeros(n)  # logarithms of the weights

    def choose(self) -> int:
        """An arm by its probability."""
        return draw(self.index(), self.rng)

    def index(self) -> Floats:
        """[arms] probabilities."""
        w = np.exp(self.gain - self.gain.max())
        p: Floats = (1 - self.mix) * w / w.sum() + self.mix / len(w)
        return p

    def learn(self, arm: int, reward: float) -> None:
        """Raise the weight of the arm that drafted."""
        self.gain[arm] += self.mix * reward / (len(self.gain) * self.index()[arm])
        super().learn(arm, reward)
