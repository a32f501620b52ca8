"""Sliding-window UCB (Garivier and Moulines 2011): a bandit with a short memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from specdemo.selectors.bandit import UpperConfidence
from specdemo.selectors.base import Floats, within


class SlidingUCB(UpperConfidence):
    """Bandit with a short memory: upper confidence bounds of the rewards of the last rounds only.

    Over the last ``window`` rounds, n_i of them with arm i, the index is
    ``mean_i + beta * sqrt(2 ln min(t, window) / n_i)``; an arm that has left the window is tried again.

    Args:
        window: rounds remembered. With fewer than a few times the number of arms nothing but exploring is left.
        beta: exploration strength, chosen as in metasd-ucb.
        reward: "bd", block divergence, or "be", block efficiency.
    """

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        window: int = 100,
        beta: float = 0.1,
        reward: str = "bd",
    ) -> None:
        super().__init__(arms, lengths, rng, reward)
        within("window", window, 1)
        within("beta", beta, 0)
        self.beta, self.window = beta, window
        self.recent: deque[tuple[int, float]] = deque()
        self.total = np.zeros(len(self.arms))

    def learn(self, arm: int, reward: float) -> None:
        """Add the reward; what leaves the window is forgotten."""
        self._add(arm, 1, reward)
        self.recent.append((arm, reward))
        if len(self.recent) > self.window:
            old, gone = self.recent.popleft()
            self._add(old, -1, -gone)

    def _add(self, arm: int, pulls: int, reward: float) -> None:
        self.pulls[arm] += pulls
        self.total[arm] += reward
        self.mean[arm] = self.total[arm] / self.pulls[arm] if self.pulls[arm] else 0.0

    def bonus(self) -> Floats:
        """beta * sqrt(2 ln min(t, window) / n_i)."""
        wide: Floats = self.beta * np.sqrt(2 * np.log(max(1, len(self.recent))) / self.pulls)
        return wide
