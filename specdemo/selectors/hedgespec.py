"""HedgeSpec (arXiv 2510.20064): full information about every drafter from one verified text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdemo.estimators import FORMS, Floats
from specdemo.selectors.base import Known, draw, largest, one_of, within
from specdemo.selectors.full import FullInformation
from specdemo.selectors.learners import LEARNERS, Learner
from specdemo.selectors.pace import Pace
from specdemo.selectors.signals import SIGNALS
from specdemo.types import Snapshot, SpecdemoError


class HedgeSpec(FullInformation):
    """Full information: every drafter is scored on the verified text, a learner (NormalHedge) weighs them.

    What the text says about a position is a loss for every arm (see ``signal``). It is fed when it is known, and the
    newest weights always act (Joulani et al. 2013, the delayed-feedback reduction, which under full information is a
    single learner). A fresh start for every answer: weights carried over lose more than they bring.

    Args:
        learner: "normalhedge" (the paper's), "hedge", "adahedge", "adanormalhedge", "squint" or "fixed-share".
        signal: "eal", counterfactual acceptance length (the paper's); "etap", acceptance of each position (the paper's,
            too); or "vr", virtual rounds (ours), which is what a round costs, and knows no delay.
        form: of "eal": "iw-a" (unbiased on committed text), "iw-b" (too, noisier) or "plug-in" (the paper's).
        choice: "sample" draws the arm from the weights, as the regret bound asks; "argmax" takes the heaviest.
        period: rounds from one evaluation of all arms to the next; 0: by their cost (pace.py).
        discount: of "normalhedge": what is left of a regret a token later; 0.95 follows changing domains.
        eta: learning rate of "hedge" (0: the anytime rate) and "fixed-share" (0: its default, 2).
        alpha: share of "fixed-share".

    In the snapshot ``estimate`` is the mean acceptance length ("eal", bonus token counted), tokens per round ("vr"), or
    mean acceptance ("etap") so far, and ``loss`` the mean loss of the steps that the round made known.
    """

    def __init__(
        self,
        arms: Sequence[str],
        lengths: Sequence[int],
        rng: np.random.Generator,
        learner: str = "normalhedge",
        signal: str = "eal",
        form: str = "iw-a",
        choice: str = "sample",
        period: int = 1,
        discount: float = 1.0,
        eta: float = 0.0,
        alpha: float = 0.01,
    ) -> None:
        super().__init__(arms, lengths, rng, Pace(period))
        one_of("learner", learner, tuple(LEARNERS))
        one_of("signal", signal, tuple(SIGNALS))
        one_of("form", form, FORMS)
        one_of("choice", choice, ("sample", "argmax"))
        within("discount", discount, 0, 1)
        within("eta", eta, 0)
        within("alpha", alpha, 0, 1)
        self.choice = choice
        self.signal = SIGNALS[signal]([int(k) for k in lengths], next(f for f in FORMS if f == form))
        self.learner = _learner(learner, len(self.arms), discount, eta, alpha)
        self.weights = self.learner.weights()
        self.last: Known = (None,) * len(self.arms)

    def choose(self) -> int:
        """An arm by its weight."""
        return largest(self.weights, self.rng) if self.choice == "argmax" else draw(self.weights, self.rng)

    def learn(self, a: Floats, r: Floats, factors: Floats | None = None) -> None:
        """Feed the losses that these positions make known."""
        losses = self.signal.push(a, r, factors)
        for loss in losses:
            self.learner.update(loss)
        self.weights = self.learner.weights()
        self.last = tuple(losses.mean(0).tolist()) if len(losses) else (None,) * len(self.arms)

    def snapshot(self) -> Snapshot:
        """Weights, estimates, losses."""
        estimate = self.signal.estimate().tolist() if self.signal.steps else [None] * len(self.arms)
        return Snapshot("weight", tuple(self.weights.tolist()), tuple(estimate), self.last)


def _learner(name: str, arms: int, discount: float, eta: float, alpha: float) -> Learner:
    """A learner with those of the options that are its own."""
    if discount < 1 and name != "normalhedge":
        raise SpecdemoError(f"discount is normalhedge's; {name} forgets nothing. Use fixed-share, or leave it out.")
    options = {"normalhedge": {"discount": discount}, "hedge": {"eta": eta}}.get(name, {})
    if name == "fixed-share":
        options = {"eta": eta or 2.0, "alpha": alpha}
    return LEARNERS[name](arms, **options)
