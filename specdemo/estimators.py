"""What all arms would have done, from one verified text: lengths of drafts, numbers of rounds.

At each committed position arm i has ``a`` = 1 - TV(p, q_i), the probability that a draft of its is accepted there, and
``r`` = min(1, q_i(x) / p(x)), the probability that its drafting would have led to the token x that is there
(feedback.py computes both). Estimators take one position of all arms at a time, in the order of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class AcceptanceWindows:
    """Counterfactual acceptance lengths (EAL) of all arms at every position, from committed text only.

    For arm i with draft length K the window of position t needs the K positions t .. t+K-1 and is ready when they are
    committed, however short the rounds were (waiting instead of censoring, HedgeSpec arXiv 2510.20064). Committed text
    follows p, so the exactly unbiased form is ``1 + sum_k (prod_{j<k} r_j) a_k``; at temperature 0, where a = r, it is
    HedgeSpec's plug-in ``1 + sum_k prod_{j<=k} a_j``. O(pending x arms) per token.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.k = np.array(lengths)  # [arms] draft length of each arm
        self._pending: list[tuple[int, Floats, Floats]] = []  # (positions seen, prod r, sum so far) per open window

    def push(self, a: Floats, r: Floats) -> list[Floats]:
        """Add one committed position (a, r: [arms]); returns the lengths [arms] of the windows it completes."""
        self._pending.append((0, np.ones(len(self.k)), np.ones(len(self.k))))
        # An arm's sum stops at its own K; the window is closed when the longest arm has its K positions.
        moved = [(n + 1, weight * r, total + weight * a * (n < self.k)) for n, weight, total in self._pending]
        longest = self.k.max(initial=0)
        self._pending = [w for w in moved if w[0] < longest]
        return [total for n, _, total in moved if n >= longest]


class VirtualRounds:
    """How many rounds every arm alone would have needed for the text so far, whoever wrote it.

    Each arm runs its own rounds along the text. p_j is the probability that the next position is at depth j of such a
    round; at depth K stands the bonus token. A committed position with acceptance x ends the round with probability
    1 - x, and always at depth K::

        rho = p_K + (1 - x) sum_{j<K} p_j ;  p_j <- x p_{j-1} ;  p_0 <- rho

    rho is the probability that a round ends, and the next one begins, here. With x = r its sum is the expected number
    of rounds, exactly; at temperature 0, where r is 0 or 1, it is a plain count.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.k = np.array(lengths, dtype=int)
        self._arms = np.arange(len(self.k))
        depths = np.arange(int(self.k.max(initial=0)) + 1)
        self._reached = depths <= self.k[:, None]
        self._p = np.zeros(self._reached.shape)  # [arms, depth]
        self._p[:, 0] = 1.0  # the first position begins a round

    def push(self, x: Floats) -> Floats:
        """Add one committed position (x: [arms]); returns rho [arms], the rounds that end with it."""
        bonus = self._p[self._arms, self.k]
        rho: Floats = bonus + (1 - x) * (self._p.sum(1) - bonus)
        self._p[:, 1:] = self._p[:, :-1] * x[:, None]
        self._p[:, 0] = rho
        self._p *= self._reached
        return rho
