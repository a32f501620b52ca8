"""HedgeSpec (arXiv 2510.20064): full information about every drafter from one verified text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from specdemo.estimators import AcceptanceWindows
from specdemo.selectors.base import BaseSelector
from specdemo.selectors.normalhedge import NormalHedge
from specdemo.types import Information, RoundFeedback, Snapshot, SpecdemoError


class HedgeSpec(BaseSelector):
    """Full information: every drafter is scored on the verified text, NormalHedge weighs them.

    The loss of arm i at a position is ``1 - EAL_i / (K + 1)``, K the longest draft of any arm, where EAL is the
    counterfactual acceptance length of its window; it is fed when the window is complete, and the newest weights always
    act (Joulani et al. 2013, the delayed-feedback reduction, which under full information is a single learner).
    A fresh start for every answer.

    Args:
        choice: "sample" draws the arm from the weights, as the regret bound asks; "argmax" takes the heaviest.

    In the snapshot ``estimate`` is the mean counterfactual acceptance length so far (bonus token counted) and ``loss``
    the mean loss of the windows that this round completed.
    """

    information: ClassVar[Information] = "full"

    def __init__(
        self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, choice: str = "sample"
    ) -> None:
        super().__init__(arms, lengths, rng)
        if choice not in ("sample", "argmax"):
            raise SpecdemoError(f"choice is {choice!r}; hedgespec knows 'sample' and 'argmax'.")
        self.choice = choice
        self.learner = NormalHedge(len(self.arms))
        self.windows, self.count, self.total = AcceptanceWindows(lengths), 0, np.zeros(len(self.arms))
        self.last: tuple[float | None, ...] = (None,) * len(self.arms)

    def choose(self) -> int:
        """An arm by its weight."""
        w = self.learner.weights()
        return int(w.argmax()) if self.choice == "argmax" else int(self.rng.choice(len(w), p=w))

    def update(self, feedback: RoundFeedback) -> None:
        """Feed the windows completed by this round."""
        assert feedback.acceptance is not None
        assert feedback.ratio is not None
        longest, losses = self.lengths.max(initial=0), []
        for a, r in zip(feedback.acceptance, feedback.ratio, strict=True):
            for length in self.windows.push(a, r):
                losses.append(1 - length / (longest + 1))
                self.learner.update(losses[-1])
                self.total += length
        self.count += len(losses)
        self.last = tuple(np.mean(losses, axis=0).tolist()) if losses else (None,) * len(self.arms)

    def snapshot(self) -> Snapshot:
        """Weights, mean acceptance lengths, losses."""
        mean = (self.total / self.count).tolist() if self.count else [None] * len(self.arms)
        return Snapshot("weight", tuple(self.learner.weights().tolist()), tuple(mean), self.last)
