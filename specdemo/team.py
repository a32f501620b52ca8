"""The drafters of a run: how much of the text each has read, and what each would have proposed there."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from specdemo.calibration import Calibration
from specdemo.feedback import Floats, draft_acceptance, likelihood_ratio, overlap
from specdemo.sampling import Dice
from specdemo.types import Drafter, Evaluated, Proposal, Rows, Together, Verified

DIGITS = 6  # of probabilities that are stored, for every position and arm


@dataclass(frozen=True, slots=True)
class Judged:
    """What all drafters would have proposed at positions of the text.

    Attributes:
        first: of the positions. ``text``: at them, with the target's laws.
        acceptance, ratio: [positions, arms] a and r, see feedback.py.
    """

    first: int
    text: Verified
    acceptance: Floats
    ratio: Floats

    def report(self) -> Evaluated:
        """For display and regret, JSON-able."""
        a, r = (tuple(map(tuple, m.round(DIGITS).tolist())) for m in (self.acceptance, self.ratio))
        return Evaluated(a, r)


class Team:
    """Drafters on one growing text.

    Positions of the answer wait, with the target's laws, until :meth:`judge` asks what every drafter would have
    proposed there; a drafter that has to draft in between reads them earlier, and what it would have proposed is kept,
    unless it can tell later, together with others. So every position is judged exactly once for every drafter, in the
    order of the text, whenever that is.

    Args:
        context: the text, which whoever made the team lets grow. ``features``: of the same text.
        judged: False: nobody will ask, laws are not kept.
    """

    def __init__(self, drafters: Sequence[Drafter], context: list[int], features: Features, judged: bool) -> None:
        self.drafters, self.context, self.features, self.judged = list(drafters), context, features, judged
        self.seen = [0] * len(self.drafters)  # how much of the context each has read
        self.first = len(context)  # of the waiting positions
        self._laws: list[Tensor] = []
        self._kept: list[list[Floats]] = [[] for _ in self.drafters]  # [2, n] a and r of waiting positions
        self._together = {arm: d for arm, d in enumerate(self.drafters) if isinstance(d, Together)}

    def committed(self, p: Tensor) -> None:
        """The context has grown by positions with the target's laws ``p`` [n, V]."""
        if self.judged:
            self._laws.append(p)

    def level(self, arm: int) -> None:
        """Let a drafter read what it has not seen."""
        if self.seen[arm] < len(self.context):
            verified = self._since(self.seen[arm])
            if arm in self._together:
                verified = replace(verified, probs=None)
            rows = self.drafters[arm].catch_up(verified)
            self.seen[arm] = len(self.context)
            if verified.probs is not None:
                nothing = np.zeros((2, len(verified.tokens)))
                self._kept[arm].append(nothing if rows is None else _compared(verified, rows))

    def judge(self) -> Judged:
        """Everybody reads everything; what they would have proposed at the positions that waited."""
        for arm in range(len(self.drafters)):
            self.level(arm)
        first, waited = self.first, self._since(self.first)
        a, r = np.zeros((2, len(waited.tokens), len(self.drafters)))
        for arm, kept in enumerate(self._kept):
            a[:, arm], r[:, arm] = np.concatenate(kept, 1) if kept else (0.0, 0.0)
            kept.clear()
        for arms in self._groups():
            group = [self._together[arm] for arm in arms]
            a[:, arms], r[:, arms] = _compared(waited, group[0].proposed(group, first)).transpose(0, 2, 1)
        self.first = len(self.context)
        self._laws.clear()
        return Judged(first, waited, a, r)

    def draft_ms(self, arm: int, k: int) -> float:
        """Milliseconds of a draft of ``k`` tokens, measured without consequences: drafts are written over."""
        begin = time.perf_counter()
        self.drafters[arm].propose(k, Dice(0))
        return 1e3 * (time.perf_counter() - begin)

    def _groups(self) -> Iterable[list[int]]:
        """Arms that are asked together."""
        groups: dict[Hashable, list[int]] = {}
        for arm, drafter in self._together.items():
            groups.setdefault(drafter.group, []).append(arm)
        return groups.values()

    def _since(self, position: int) -> Verified:
        """The text from a position on, with laws if they wait."""
        laws = None
        if self._laws and position >= self.first:
            self._laws = [torch.cat(self._laws)] if len(self._laws) > 1 else self._laws
            laws = self._laws[0][position - self.first :]
        return Verified(tuple(self.context[position:]), laws, self.features.since(position))


def _compared(verified: Verified, rows: Rows) -> Floats:
    """[2, ..., n] a and r."""
    return np.stack([overlap(verified, rows), likelihood_ratio(verified, rows)])


@dataclass(frozen=True, slots=True)
class Draft:
    """What became of a draft.

    Attributes:
        arm: that drafted. ``k``: length asked for. ``position``: of its first token in the text.
        p: [drafted + 1, V] target laws. ``path``: accepted. ``tokens``: the block. ``drafted``: tokens that count.
    """

    arm: int
    k: int
    position: int
    proposal: Proposal
    p: Tensor
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    drafted: int


class Evaluation:
    """What all arms would have done, and how far they can be believed.

    Args:
        lengths, families: of the arms. ``calibrate``: compare with what drafts realise.
    """

    def __init__(self, lengths: Sequence[int], families: Sequence[str], calibrate: bool) -> None:
        self.calibration, self.calibrate = Calibration(lengths, families), calibrate

    def drafted(self, draft: Draft) -> tuple[float, ...]:
        """Note how a draft fared, up to the first rejection or the cut, until its positions are judged."""
        if not (self.calibrate and draft.k):
            return ()
        realised = draft_acceptance(draft.proposal, draft.p, draft.path)[: len(draft.tokens)]
        self.calibration.drafted(draft.arm, draft.position, realised)
        return tuple(realised.round(DIGITS).tolist())

    def judge(self, team: Team) -> Judged:
        """Let a team judge what waits."""
        judged = team.judge()
        self.calibration.judged(judged.first, judged.acceptance)
        return judged


class Features:
    """The target's hidden states that each token of the context was predicted from, if any drafter reads them."""

    def __init__(self, capacity: int, prompt: Tensor | None) -> None:
        self.rows: Tensor | None = None
        self.length = 0
        if prompt is not None:
            self.length = len(prompt) + 1  # nothing comes before the first token
            self.rows = prompt.new_zeros(max(capacity, self.length), prompt.shape[-1])
            self.rows[1 : self.length] = prompt

    def append(self, hidden: Tensor | None, rows: Sequence[int]) -> None:
        """Keep those of newly committed tokens, which came from ``rows`` of the last forward."""
        if self.rows is None or hidden is None:
            return
        start, self.length = self.length, self.length + len(rows)
        self.rows[start : self.length] = hidden[rows]

    def since(self, position: int) -> Tensor | None:
        """Those of the tokens from ``position`` on."""
        return None if self.rows is None else self.rows[position : self.length]
