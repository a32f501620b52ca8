"""EXP3Spec (BanditSpec, arXiv 2505.15141, Algorithm 9): a bandit for lengths of blocks that an adversary chose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.selectors.bandit import Bandit
from specdemo.selectors.base import Floats, draw
from specdemo.types import RoundFeedback


class EXP3Spec(Bandit):
    """Bandit without assumptions: exponential weights of importance-weighted losses, no horizon, no mixing.

    In round t ``p_i ~ exp(-eta_t sum_s Z_is)`` with ``eta_t = sqrt(ln N / (t N))``; the arm I that drafted is charged
    ``Z_I = (L + 1 - Y) / (L p_I)``, Y = accepted + 1, L the longest draft.

    In the snapshot ``estimate`` is the mean block length and ``loss`` is (L + 1 - Y) / L of the arm just pulled.
    """

    kind: ClassVar[str] = "weight"

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator) -> None:
        super().__init__(arms, lengths, rng)
        self.longest, self.rounds = float(self.lengths.max(initial=1)), 0
        self.charged = np.zeros(len(self.arms))

    def choose(self) -> int:
        """An arm by its probability."""
        return draw(self.index(), self.rng)

    def index(self) -> Floats:
        """[arms] probabilities in the next round."""
        n, t = len(self.arms), self.rounds + 1
        w = np.exp(-math.sqrt(math.log(n) / (t * n)) * (self.charged - self.charged.min()))
        p: Floats = w / w.sum()
        return p

    def update(self, feedback: RoundFeedback) -> None:
        """Charge the arm that drafted."""
        arm, loss = feedback.arm, 1 - feedback.accepted / self.longest
        self.charged[arm] += loss / self.index()[arm]
        self.rounds += 1
        self.learn(arm, feedback.accepted + 1.0)
        self.last = arm, loss
