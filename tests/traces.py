"""Synthetic runs for tests: rounds that keep every invariant of specdemo.types without a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdemo.types import Request, Round, Snapshot, Start

ARMS = ("lookup", "suffix", "small")


def make_request(**changes: Any) -> Request:
    return Request(**{"prompt": "Once upon a time", "selector": "fixed", **changes})


def make_start(arms: Sequence[str] = ARMS, **changes: Any) -> Start:
    start = Start(prompt_tokens=7, prefill_ms=40.0, compile_ms=0.0, rows=6, arms=tuple(arms), drafters=tuple(arms))
    return replace(start, **changes)


def make_round(
    index: int = 0,
    draft: Sequence[int] = (),
    accepted: int = 0,
    own: int = 99,
    *,
    arm: int | None = None,
    arms: Sequence[str] = ARMS,
    round_ms: float = 30.0,
    **changes: Any,
) -> Round:
    """A chain round: the first ``accepted`` of ``draft`` are kept, then the target's ``own`` token."""
    tokens = (*draft[:accepted], own)
    plain = Round(
        index=index,
        arm=(0 if draft else -1) if arm is None else arm,
        k=len(draft),
        draft=tuple(draft),
        parents=None,
        draft_p=tuple(0.9 if i < accepted else 0.1 for i in range(len(draft))),
        draft_q=(0.5,) * len(draft),
        drafted=len(draft),
        accepted=accepted,
        path=tuple(range(accepted)),
        tokens=tokens,
        p=(0.8,) * len(tokens),
        pieces=tuple(f" t{token}" for token in tokens),
        finish=None,
        draft_ms=round_ms * 0.1,
        verify_ms=round_ms * 0.7,
        feedback_ms=round_ms * 0.1,
        learn_ms=round_ms * 0.05,
        other_ms=round_ms * 0.05,
        at_ms=round_ms * (index + 1),
        snapshot=make_snapshot(len(arms)),
        start=make_start(arms) if index == 0 else None,
    )
    return replace(plain, **changes)


def make_snapshot(arms: int) -> Snapshot:
    return Snapshot("weight", (1 / arms,) * arms, (None,) * arms, (0.25,) * arms)


def make_trace(seed: int = 0, n: int = 20, arms: Sequence[str] = ARMS, finish: str | None = "length") -> list[Round]:
    """n rounds of random arms, draft lengths and outcomes; ``finish`` is the last round's."""
    rng = random.Random(seed)
    rounds = []
    for index in range(n):
        draft = [rng.randrange(49152) for _ in range(rng.randint(0, 5))]
        rounds.append(
            make_round(
                index,
                draft,
                rng.randint(0, len(draft)),
                rng.randrange(49152),
                arm=rng.randrange(len(arms)) if draft else -1,
                arms=arms,
                draft_q=tuple(rng.random() for _ in draft),
                draft_p=tuple(rng.random() for _ in draft),
                finish=finish if index == n - 1 else None,
            )
        )
    return rounds
