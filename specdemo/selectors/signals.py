"""What full information makes of the acceptance of all arms: losses in [0, 1], one per step of the learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from specdemo.estimators import AcceptanceWindows, Floats, Form, VirtualRounds


class Signal(Protocol):
    """One of the signals below."""

    steps: int  # losses so far

    def push(self, a: Floats, r: Floats, factors: Floats | None) -> Floats:
        """Committed positions (a, r: [positions, arms]) and the factors of acceptance by depth, if they are known ->
        the losses [steps, arms] they make known."""
        ...

    def estimate(self) -> Floats:
        """[arms] what the selector believes of the arms; not before the first step."""
        ...


class AcceptanceLength:
    """``1 - EAL / (K + 1)`` of every position, K the longest draft of any arm, once its window of K is complete.

    The estimate is the mean counterfactual acceptance length, bonus token counted.
    """

    def __init__(self, lengths: Sequence[int], form: Form) -> None:
        self.windows, self.steps, self.total = AcceptanceWindows(lengths, form), 0, np.zeros(len(lengths))

    def push(self, a: Floats, r: Floats, factors: Floats | None) -> Floats:
        """Losses of the windows that these positions complete."""
        lengths = self.windows.push(a, r, factors)
        self.steps += len(lengths)
        self.total += lengths.sum(0)
        return 1 - lengths / (self.windows.longest + 1)

    def estimate(self) -> Floats:
        """[arms] mean length."""
        return self.total / self.steps


class Rounds:
    """rho of virtual rounds with x = a: the probability that the arm would have needed a new round here. No delay.

    The estimate is tokens per round, positions / sum of rho.
    """

    def __init__(self, lengths: Sequence[int], form: Form) -> None:
        self.rounds, self.steps, self.total = VirtualRounds(lengths), 0, np.zeros(len(lengths))

    def push(self, a: Floats, r: Floats, factors: Floats | None) -> Floats:
        """One loss per position."""
        rho = self.rounds.push(a, factors)
        self.steps += len(rho)
        self.total += rho.sum(0)
        return rho

    def estimate(self) -> Floats:
        """[arms] tokens per round; the text itself is counted as the round that is not over."""
        return self.steps / np.maximum(self.total, 1)


class Acceptance:
    """ETAP, ``1 - a`` of every position. The estimate is the mean acceptance."""

    def __init__(self, lengths: Sequence[int], form: Form) -> None:
        self.steps, self.total = 0, np.zeros(len(lengths))

    def push(self, a: Floats, r: Floats, factors: Floats | None) -> Floats:
        """One loss per position."""
        self.steps += len(a)
        self.total += a.sum(0)
        return 1 - a

    def estimate(self) -> Floats:
        """[arms] mean acceptance."""
        return self.total / self.steps


SIGNALS: dict[str, Callable[[Sequence[int], Form], Signal]] = {
    "eal": AcceptanceLength,
    "vr": Rounds,
    "etap": Acceptance,
}
