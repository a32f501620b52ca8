"""How often to evaluate all arms: often enough to learn, seldom enough to be paid for."""

from __future__ import annotations

import math

from specdemo.selectors.base import within

WARM_UP = 4  # first rounds, all evaluated if they can be paid
BACK_OFF = 8  # largest factor of the period, and of frugality, while plain decoding leads
ADVANCE = 0.5  # plain rounds that the first evaluations may cost together, before anything is earned


class Pace:
    """Rounds from one evaluation of all arms to the next.

    A fixed period, or one by cost, u being the time of an evaluation in plain rounds. What is worth it: the first four
    rounds, then every ``max(1, round(cadence sqrt(u)), ceil(u / share))`` (simulations: docs/results), up to eight
    times as rarely while plain decoding leads. What can be paid: evaluations may take ``share`` of the time of plain
    rounds, an eighth of it while plain decoding leads, and ``ADVANCE`` rounds besides::

        credit <- credit + share - u [evaluated] ,  evaluate only if credit >= u

    so after t rounds they have taken at most ``ADVANCE + share t`` plain rounds (and what one took longer than was
    expected), however dear they are, and what is cheap never has to wait.

    Args:
        period: rounds; 0: by cost. ``cadence``, ``share``: above.
    """

    def __init__(self, period: int, cadence: float = 13.0, share: float = 0.1) -> None:
        within("period", period, 0)
        within("cadence", cadence, 0)
        within("share", share, 0.001, 1)
        self.by_cost, self.period = period == 0, max(1, period)
        self.cadence, self.share = cadence, share
        self._seen, self._since, self._back_off = 0, 0, 1
        self._credit, self._price = ADVANCE, 0.0

    def due(self) -> bool:
        """Whether to evaluate after this round."""
        if not self.by_cost:
            return self._since + 1 >= self.period
        worth = self._seen < WARM_UP or self._since + 1 >= self.period * self._back_off
        return worth and self._credit >= self._price

    def passed(self, evaluated: bool, drafted: bool, price: float) -> None:
        """A round is over: whether all arms were evaluated, whether one of them drafted, and what an evaluation takes,
        in plain rounds."""
        self._seen += 1
        self._since = 0 if evaluated else self._since + 1
        self._price = price
        self._credit += (self.share if drafted else self.share / BACK_OFF) - price * evaluated
        if evaluated:
            self._back_off = 1 if drafted else min(BACK_OFF, 2 * self._back_off)
        if self.by_cost:
            self.period = max(1, round(self.cadence * math.sqrt(price)), math.ceil(price / self.share))
