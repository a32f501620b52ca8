"""Sequential halving (Karnin, Koren, Somekh 2013), as MetaSD uses it (arXiv 2604.05417, Algorithm 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from specdemo.selectors.bandit import Bandit
from specdemo.selectors.base import Floats, within


class MetaSDHalving(Bandit):
    """Bandit: every drafter some rounds in a row, the better half again, until one is left: few switches.

    With S arms left of N, each drafts ``max(1, floor(budget / (S * ceil(log2 N))))`` consecutive rounds; the half with
    the larger mean rewards (all rounds so far) stays. At most 2 N switches, then none.

    Args:
        budget: rounds for finding the arm. Not published; 60 is a fifth of an answer of 300 rounds.
        reward: "bd", block divergence, or "be", block efficiency.
    """

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        budget: int = 60,
        reward: str = "bd",
    ) -> None:
        super().__init__(arms, lengths, rng, reward)
        within("budget", budget, 1)
        self.budget, self.phases = budget, max(1, math.ceil(math.log2(max(1, len(self.arms)))))
        self.left = list(range(len(self.arms)))
        self._plan = self._phase()

    def _phase(self) -> list[int]:
        """The rounds of one phase."""
        if len(self.left) <= 1:
            return []
        each = max(1, self.budget // (len(self.left) * self.phases))
        return [arm for arm in self.left for _ in range(each)]

    def choose(self) -> int:
        """The phase's next arm, or the one that is left."""
        return self._plan[0] if self._plan else self.left[0]

    def learn(self, arm: int, reward: float) -> None:
        """Count; at the end of a phase, drop the worse half."""
        super().learn(arm, reward)
        if self._plan:
            self._plan.pop(0)
            if not self._plan:
                ranked = sorted(self.left, key=lambda i: -self.mean[i])
                self.left = sorted(ranked[: (len(self.left) + 1) // 2])
                self._plan = self._phase()

    def index(self) -> Floats:
        """Mean rewards of the arms still in the race."""
        value = np.full(len(self.arms), -np.inf)
        value[self.left] = self.mean[self.left]
        return value
