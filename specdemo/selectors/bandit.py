"""What the bandits share: they learn from the arm that drafted, and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.selectors.base import BaseSelector, Floats, known, largest, one_of
from specdemo.types import Information, RoundFeedback, Snapshot

REWARDS = ("bd", "be")


class Bandit(BaseSelector):
    """Counts and mean rewards of every arm. Rewards lie in [0, 1], unless a subclass says otherwise.

    In the snapshot ``value`` is what the choice is made by, ``estimate`` the mean reward, and ``loss`` 1 - reward of
    the arm just pulled; None for arms never pulled.
    """

    information: ClassVar[Information] = "bandit"
    kind: ClassVar[str] = "index"

    def __init__(
        self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, reward: str = "bd"
    ) -> None:
        super().__init__(arms, lengths, rng)
        one_of("reward", reward, REWARDS)
        self.reward = reward
        self.pulls, self.mean = np.zeros(len(self.arms)), np.zeros(len(self.arms))
        self.last: tuple[int, float] | None = None

    def value(self, feedback: RoundFeedback) -> float:
        """Reward of a round: "bd", block divergence (mean of 1 - TV(p, q) over all drafted positions); or "be", block
        efficiency (accepted / draft length)."""
        if self.reward == "bd":
            assert feedback.divergence is not None
            return feedback.divergence
        return feedback.accepted / float(self.lengths[feedback.arm])

    def update(self, feedback: RoundFeedback) -> None:
        """Count the round and learn its reward."""
        reward = self.value(feedback)
        self.learn(feedback.arm, reward)
        self.last = feedback.arm, 1 - float(reward)

    def learn(self, arm: int, reward: float) -> None:
        """Move the mean of the arm that drafted."""
        self.pulls[arm] += 1
        self.mean[arm] += (reward - self.mean[arm]) / self.pulls[arm]

    def index(self) -> Floats:
        """[arms] what the choice is made by."""
        raise NotImplementedError

    def snapshot(self) -> Snapshot:
        """Indices, mean rewards, last loss."""
        tried = self.pulls > 0
        loss: list[float | None] = [None] * len(self.arms)
        if self.last:
            loss[self.last[0]] = self.last[1]
        value = self.index()
        return Snapshot(self.kind, known(value, np.isfinite(value)), known(self.mean, tried), tuple(loss))


class UpperConfidence(Bandit):
    """Optimism: an arm that has no pulls, in the pool's order; then the largest mean plus bonus, ties by lot."""

    def choose(self) -> int:
        """The arm that drafts next."""
        untried = np.flatnonzero(self.pulls <= 0)
        return int(untried[0]) if untried.size else largest(self.index(), self.rng)

    def index(self) -> Floats:
        """[arms] mean + bonus; infinite for arms without pulls."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.pulls > 0, self.mean + self.bonus(), np.inf)

    def bonus(self) -> Floats:
        """[arms] width of the confidence interval. It shrinks with the arm's *own* pulls: published code that divides
        by the pulls of all arms gives every arm the same bonus, and never explores."""
        raise NotImplementedError
