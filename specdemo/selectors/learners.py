"""Learners with full information: weights over experts from all experts' losses. One file each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from specdemo.selectors.adahedge import AdaHedge
from specdemo.selectors.adanormalhedge import AdaNormalHedge
from specdemo.selectors.base import Floats
from specdemo.selectors.fixed_share import FixedShare
from specdemo.selectors.hedge import Hedge
from specdemo.selectors.normalhedge import NormalHedge
from specdemo.selectors.squint import Squint


class Learner(Protocol):
    """Weights over N experts."""

    def weights(self) -> Floats:
        """[N] probabilities for the next step."""
        ...

    def update(self, loss: Floats) -> None:
        """[N] losses of one step, in [0, 1]."""
        ...


LEARNERS: dict[str, Callable[..., Learner]] = {
    "normalhedge": NormalHedge,
    "hedge": Hedge,
    "adahedge": AdaHedge,
    "adanormalhedge": AdaNormalHedge,
    "squint": Squint,
    "fixed-share": FixedShare,
}
