"""Records a world: every arm drafts, and says what it would propose, at every position of the target's answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from specdemo.costs import scorer, timed
from specdemo.evaluation.prompts import Prompt
from specdemo.evaluation.recorded import BLOCKS, Ints, Recorded, Recording, load, save
from specdemo.evaluation.replay import Answer, agreeing, answers, features
from specdemo.evaluation.worlds import Floats
from specdemo.sampling import Dice, Warp
from specdemo.target import HFTarget, fixed_rows
from specdemo.team import Features, Team
from specdemo.types import Arm, DraftContext, Pool, Sampling, SpecdemoError, Verified

EVERY = 8  # positions from one short draft, made to be timed, to the next


def record(pool: Pool, prompts: Sequence[Prompt], k: int, tokens: int, path: Path, kept: Path) -> Recording:
    """Record what is not in the file yet; the file is written after every answer.

    Args:
        k: longest draft. ``tokens``: of an answer, at most. ``kept``: file of answers; missing ones are written there,
            by plain decoding.

    Raises:
        SpecdemoError: the file was recorded with other drafters or another draft length; nobody is to draft.
    """
    if k < 1 or not pool.arms:
        raise SpecdemoError(
            f"The pool {pool.name} has {len(pool.arms)} arms and k is {k}; recording takes one of each."
        )
    lengths = tuple(min(k, arm.k or k) for arm in pool.arms)
    families = tuple(arm.family for arm in pool.arms)
    made = Recording(pool.name, str(pool.info.get("hash")), k, tuple(a.name for a in pool.arms), families, lengths)
    if path.exists():
        before = load(path)
        if replace(before, answers=[]) != made:
            raise SpecdemoError(f"{path} was recorded with other drafters or another k; record into a new file.")
        made = before
    known, target = {answer.id for answer in made.answers}, cast("HFTarget", pool.target)
    score = scorer(target, fixed_rows(max([k, *(arm.nodes for arm in pool.arms)]) + 1), 128)
    for answer in tqdm(answers(prompts, pool, tokens, kept), total=len(prompts), unit="prompt", desc="record"):
        if answer.id not in known and answer.tokens:
            made.answers.append(_recorded(pool.arms, lengths, target, answer, min(timed(score) for _ in range(3))))
            save(made, path)
    return made


def _recorded(arms: Sequence[Arm], lengths: Sequence[int], target: HFTarget, answer: Answer, ms: float) -> Recorded:
    read = features(target, answer)
    walked = [walk(arm, answer, read, k) for arm, k in zip(arms, lengths, strict=True)]
    acceptance, evaluation = judge(arms, target, answer, read)
    return Recorded(
        id=answer.id,
        domain=answer.domain,
        prompt=np.array(answer.prompt),
        tokens=np.array(answer.tokens),
        runs=np.stack([runs for runs, _ in walked], axis=1),
        acceptance=acceptance,
        draft_ms=np.stack([spent for _, spent in walked], axis=1),
        verify_ms=ms,
        evaluation_ms=evaluation,
    )


@torch.no_grad()
def walk(arm: Arm, answer: Answer, read: Tensor | None, k: int) -> tuple[Ints, Floats]:
    """[positions] accepted tokens of a draft at every position of an answer, and [2] median times, see ``Recorded``."""
    text, at = (*answer.prompt, *answer.tokens), len(answer.prompt)
    dice, runs, spent = Dice(0), list[int](), (list[float](), list[float]())
    drafter = arm.start(DraftContext((), Warp(Sampling(), at), len(text)))
    drafter.catch_up(_verified(text, read, 0, at))
    for t in range(at, len(text)):
        longest = min(k, len(text) - t - 1)
        begin = time.perf_counter()
        proposal = drafter.propose(longest, dice) if longest else None
        drafted = time.perf_counter()
        runs.append(agreeing(proposal, text[t:]) if proposal else 0)
        short = timed(lambda: drafter.propose(1, dice)) if longest and t % EVERY == 0 else None
        reading = timed(lambda t=t: drafter.catch_up(_verified(text, read, t, t + 1)))  # type: ignore[misc]
        if short is not None:
            spent[0].append(short + reading)
        if longest == k:
            spent[1].append(1e3 * (drafted - begin) + reading)
    return np.array(runs), np.array([np.median(ms) if ms else np.nan for ms in spent])


@torch.no_grad()
def judge(arms: Sequence[Arm], target: HFTarget, answer: Answer, read: Tensor | None) -> tuple[Floats, Floats]:
    """[positions, arms] teacher-forced acceptance, and [blocks] median time of an evaluation of so many positions."""
    context, text = list(answer.prompt), (*answer.prompt, *answer.tokens)
    start = DraftContext((), Warp(Sampling(), len(context)), len(text))
    seen = Features(len(text), None if read is None else read[1 : len(context)])
    team = Team([arm.start(start) for arm in arms], context, seen, judged=True)
    for arm in range(len(arms)):
        team.level(arm)
    found, spent = list[Floats](), dict[int, list[float]]({n: [] for n in BLOCKS})
    for block in cycle(BLOCKS):
        new = text[len(context) : len(context) + block]
        if not new:
            break
        seen.append(read, list(range(len(context), len(context) + len(new))))
        context.extend(new)
        team.committed(F.one_hot(torch.tensor(new, device=target.device), target.vocab_size).float())
        begin = time.perf_counter()
        found.append(team.judge().acceptance)
        if len(new) == block:
            spent[block].append(1e3 * (time.perf_counter() - begin))
    return np.concatenate(found), np.array([np.median(ms) if ms else np.nan for ms in spent.values()])


def _verified(text: Sequence[int], read: Tensor | None, start: int, end: int) -> Verified:
    return Verified(tuple(text[start:end]), features=None if read is None else read[start:end])
