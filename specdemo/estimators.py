"""What all arms would have done, from one verified text: lengths of drafts, numbers of rounds.

At each committed position arm i has ``a`` = 1 - TV(p, q_i), the probability that a draft of its is accepted there, and
``r`` = min(1, q_i(x) / p(x)), the probability that its drafting would have led to the token x that is there
(feedback.py computes both). For a deterministic tree a is the target's mass on the children and r = 1 if x is a child.
Estimators take positions in the order of the text, all arms at once: one [arms] or several [positions, arms].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdemo.types import SpecdemoError

Floats = NDArray[np.float64]
Form = Literal["iw-a", "iw-b", "plug-in"]
FORMS: tuple[Form, ...] = ("iw-a", "iw-b", "plug-in")


class AcceptanceWindows:
    """Counterfactual acceptance lengths (EAL) of all arms at every position, from committed text only.

    For arm i with draft length K the window of position t needs the K positions t .. t+K-1 and is ready when they are
    committed, however short the rounds were (waiting instead of censoring, HedgeSpec arXiv 2510.20064). O(K arms) per
    position. With all products starting at t, the estimates in [1, K + 1] are

    * "iw-a": ``1 + sum_k (prod_{j<k} r_j) a_k``, exactly unbiased on committed text, which follows p;
    * "iw-b": ``1 + sum_k prod_{j<=k} r_j``, too, but noisier; it needs p and q of the committed token only;
    * "plug-in": ``1 + sum_k prod_{j<=k} a_j`` (HedgeSpec's Theorem 3), exact for text that follows the drafter's own
      accepted law. On committed text it is biased, for K = 2 by -Cov_p(r_1, a_2); its variance is the smallest.

    At temperature 0 a = r, and all three are the same.
    """

    def __init__(self, lengths: Sequence[int], form: Form = "iw-a") -> None:
        if form not in FORMS:
            raise SpecdemoError(f"form is {form!r}; an acceptance length is estimated by one of: {', '.join(FORMS)}.")
        self.k = np.array(lengths, dtype=int)  # [arms] draft length of each arm
        self.longest = int(self.k.max(initial=0))
        self.form = form
        none = np.zeros((0, len(self.k)))
        self._steps, self._ends = none, none  # of positions whose windows are open: weight of going on, of ending

    def push(self, a: Floats, r: Floats, factors: Floats | None = None) -> Floats:
        """Add committed positions; returns the lengths [windows, arms] of the windows they complete, in order.

        ``factors`` as in :func:`at_depth`, applied to the windows that are completed now.
        """
        steps = np.concatenate([self._steps, np.atleast_2d(a if self.form == "plug-in" else r)])
        ends = np.concatenate([self._ends, np.atleast_2d(r if self.form == "iw-b" else a)])
        count = max(0, len(steps) - self.longest + 1)
        total, reached = np.ones((count, len(self.k))), np.ones((count, len(self.k)))
        for depth in range(self.longest):
            here = slice(depth, depth + count)
            # an arm's sum stops at its own K
            total += reached * at_depth(ends[here], factors, depth) * (depth < self.k)
            reached *= at_depth(steps[here], factors, depth)
        self._steps, self._ends = steps[count:], ends[count:]
        return total


class VirtualRounds:
    """How many rounds every arm alone would have needed for the text so far, whoever wrote it.

    Each arm runs its own rounds along the text. p_j is the probability that the next position is at depth j of such a
    round; at depth K stands the bonus token. A committed position with acceptance x ends the round with probability
    1 - x, and always at depth K; as the p_j add up to 1::

        rho = p_K + sum_{j<K} (1 - x) p_j = 1 - sum_{j<K} x p_j ;  p_j <- x p_{j-1} ;  p_0 <- rho

    rho is the probability that a round ends, and the next one begins, here. With x = r its sum is the expected number
    of rounds that end within the text, exactly; at temperature 0, where r is 0 or 1, it is a plain count. With x = a
    it is less noisy and, as a rule, off by a few per cent.

    Args:
        lengths: [..., arms] draft lengths K; several rows count rounds for several draft lengths of every arm.
        start: the text begins at depth j of a round with probability ~ start^j, j = 0 .. K; 0: it begins a round.
    """

    def __init__(self, lengths: ArrayLike, start: float = 0.0) -> None:
        k = np.array(lengths, dtype=int)
        depth = np.arange(int(k.max(initial=0)) + 1).reshape(-1, *[1] * k.ndim)
        self._inside = (depth[:-1] < k).astype(float)  # [depth, ..., arms] where a draft token stands
        p = np.where(depth <= k, float(start) ** depth, 0.0)
        self._p = p / p.sum(0)

    def push(self, x: Floats, factors: Floats | None = None) -> Floats:
        """Add committed positions, x [arms] or [positions, arms]; returns rho, [..., arms] for each of them.

        ``factors`` as in :func:`at_depth`.
        """
        if x.ndim > 1:
            return np.array([self.push(row, factors) for row in x]).reshape(len(x), *self._p.shape[1:])
        if factors is not None:
            x = np.minimum(1, factors.T * x).reshape(-1, *[1] * (self._p.ndim - 2), len(x))
        kept = self._p[:-1] * self._inside
        kept *= x
        rho: Floats = 1 - kept.sum(0)
        self._p[1:] = kept
        self._p[0] = rho
        return rho


def at_depth(x: Floats, factors: Floats | None, depth: int) -> Floats:
    """Acceptance at a depth of a draft: heads draft deeper tokens after features of their own, so what they would have
    proposed after the true text flatters them. ``factors``: [arms, longest draft], see calibration.py; None: 1."""
    return x if factors is None else np.minimum(1, x * factors[:, depth])
