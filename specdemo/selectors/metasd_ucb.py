"""MetaSD-UCB (arXiv 2604.05417, Algorithm 2): a bandit over drafters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from specdemo.selectors.base import BaseSelector
from specdemo.types import Information, RoundFeedback, Snapshot, SpecdemoError


class MetaSDUCB(BaseSelector):
    """Bandit feedback: each drafter once, then the largest upper confidence bound of its mean reward.

    After t rounds, n_i of them with arm i, its index is ``mean_i + beta * sqrt(2 ln t / n_i)``.
    State begins anew with every answer.

    Args:
        beta: exploration strength. The paper does not publish its value; with rewards in [0, 1] and gaps of 0.05 to 0.3
            beta = 1 would be near uniform for a whole answer of 256 tokens, hence 0.1.
        reward: "bd", block divergence, mean of 1 - TV(p, q) over the drafted positions; or "be", block efficiency,
            accepted / draft length.

    In the snapshot ``estimate`` is the mean reward and ``loss`` is 1 - reward of the arm just pulled.
    """

    information: ClassVar[Information] = "bandit"

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        beta: float = 0.1,
        reward: str = "bd",
    ) -> None:
        super().__init__(arms, lengths, rng)
        if reward not in ("bd", "be"):
            raise SpecdemoError(f"reward is {reward!r}; metasd-ucb knows 'bd' (divergence) and 'be' (efficiency).")
        if beta < 0:
            raise SpecdemoError(f"beta is {beta}; an exploration strength is at least 0.")
        self.beta, self.reward = beta, reward
        self.pulls, self.mean = np.zeros(len(self.arms)), np.zeros(len(self.arms))
        self.last: tuple[int, float] | None = None

    def choose(self) -> int:
        """An arm never pulled, in the pool's order; then the largest index."""
        untried = np.flatnonzero(self.pulls == 0)
        return int(untried[0]) if untried.size else int(self.index().argmax())

    def index(self) -> NDArray[np.float64]:
        """[arms] upper confidence bounds, infinite for arms never pulled."""
        t = max(1.0, self.pulls.sum())
        with np.errstate(divide="ignore"):
            bound = self.mean + self.beta * np.sqrt(2 * np.log(t) / self.pulls) if t > 1 else self.mean
        return np.where(self.pulls > 0, bound, np.inf)

    def update(self, feedback: RoundFeedback) -> None:
        """Move the mean of the arm that drafted."""
        i = feedback.arm
        value = feedback.divergence if self.reward == "bd" else feedback.accepted / self.lengths[i]
        assert value is not None
        self.pulls[i] += 1
        self.mean[i] += (value - self.mean[i]) / self.pulls[i]
        self.last = i, 1 - float(value)

    def snapshot(self) -> Snapshot:
        """Indices and mean rewards; None where an arm has not been pulled."""
        tried = self.pulls > 0
        loss: list[float | None] = [None] * len(self.arms)
        if self.last:
            loss[self.last[0]] = self.last[1]
        return Snapshot("index", _known(self.index(), tried), _known(self.mean, tried), tuple(loss))


def _known(values: NDArray[np.float64], known: NDArray[np.bool_]) -> tuple[float | None, ...]:
    return tuple(float(v) if k else None for v, k in zip(values, known, strict=True))
