"""MetaSD-UCB (arXiv 2604.05417, Algorithm 2): a bandit over drafters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.selectors.bandit import UpperConfidence
from specdemo.selectors.base import Floats, within


class MetaSDUCB(UpperConfidence):
    """Bandit: each drafter once, then the largest upper confidence bound of its mean reward.

    After t rounds, n_i of them with arm i, its index is ``mean_i + beta * sqrt(2 ln t / n_i)``.

    Args:
        beta: exploration strength. The paper does not publish its value; with rewards in [0, 1] and gaps of 0.05 to 0.3
            beta = 1 would be near uniform for a whole answer of 256 tokens, hence 0.1.
        reward: "bd", block divergence, mean of 1 - TV(p, q) over the drafted positions; or "be", block efficiency,
            accepted / draft length.
    """

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        beta: float = 0.1,
        reward: str = "bd",
    ) -> None:
        super().__init__(arms, lengths, rng, reward)
        within("beta", beta, 0)
        self.beta = beta

    def bonus(self) -> Floats:
        """beta * sqrt(2 ln t / n_i)."""
        wide: Floats = self.beta * np.sqrt(2 * np.log(max(1.0, self.pulls.sum())) / self.pulls)
        return wide
