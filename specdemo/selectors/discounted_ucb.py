"""Discounted UCB (Garivier and Moulines 2011): a bandit that forgets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.selectors.bandit import UpperConfidence
from specdemo.selectors.base import Floats, within


class DiscountedUCB(UpperConfidence):
    """Bandit that forgets: upper confidence bounds of rewards that fade with every round.

    Counts and sums of rewards are multiplied by gamma each round; with n_i the discounted count, the index is
    ``mean_i + beta * sqrt(2 ln(sum_j n_j) / n_i)``.

    Args:
        gamma: what is left of a reward a round later; 0.98 remembers about 50 rounds (0.9 to 0.99 in the literature).
        beta: exploration strength; 0.03 was best in simulations of answers of 300 rounds.
        reward: "bd", block divergence, or "be", block efficiency.
    """

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        gamma: float = 0.98,
        beta: float = 0.03,
        reward: str = "bd",
    ) -> None:
        super().__init__(arms, lengths, rng, reward)
        within("gamma", gamma, 0, 1)
        within("beta", beta, 0)
        self.gamma, self.beta = gamma, beta

    def learn(self, arm: int, reward: float) -> None:
        """Fade all counts (means stay what they are), then add the reward."""
        self.pulls *= self.gamma
        super().learn(arm, reward)

    def bonus(self) -> Floats:
        """beta * sqrt(2 ln n / n_i), n the sum of the discounted counts."""
        wide: Floats = self.beta * np.sqrt(2 * np.log(max(1.0, self.pulls.sum())) / self.pulls)
        return wide
