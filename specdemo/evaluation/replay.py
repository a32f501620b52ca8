"""Drafters on texts that are known already: what each would have drafted, without asking the target again.

At temperature 0 every drafter leads to the same text, the target's own. So the text is written once; then each drafter
is walked along it, round by round, as the engine would: draft K tokens, keep those that agree with the text, commit
them and the next one. The rounds are the engine's (a test compares), at a tenth of the time; in half precision a
near-tie of the drafter may fall otherwise, because here the target reads the text at once, rounded differently.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from specdemo.engine import generate
from specdemo.evaluation.prompts import Prompt
from specdemo.feedback import overlap
from specdemo.jsonl import whole_lines
from specdemo.sampling import Dice, Warp
from specdemo.target import HFTarget
from specdemo.types import Arm, DraftContext, Message, Pool, Proposal, Request, Sampling, Verified


@dataclass(frozen=True, slots=True)
class Answer:
    """The target's greedy answer to a prompt: token ids."""

    id: str
    domain: str
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """One arm on one answer.

    Attributes:
        arm: its name. ``k``: draft length, or depth of a tree.
        rounds: how many there would have been. ``accepted``: of each round.
        tokens: committed.
        drafted: tokens of each round's draft (nodes of a tree).
        draft_ms: time spent drafting and catching up, all rounds together.
        agreement: share of positions at which the drafter's first token is the target's, the true text before it.
    """

    id: str
    domain: str
    arm: str
    k: int
    rounds: int
    tokens: int
    accepted: tuple[int, ...]
    drafted: tuple[int, ...]
    draft_ms: float
    agreement: float

    @property
    def length(self) -> float:
        """Mean acceptance length: tokens / rounds."""
        return self.tokens / max(1, self.rounds)


def answers(prompts: Sequence[Prompt], pool: Pool, tokens: int, kept: Path, arm: str = "") -> Iterator[Answer]:
    """The target's greedy answers of at most ``tokens`` tokens; those in the file ``kept`` are not written again.

    Args:
        arm: drafter that speeds it up; the text is the same. Empty: plain decoding.
    """
    known = {row["id"]: row for row in whole_lines(kept)}
    kept.parent.mkdir(parents=True, exist_ok=True)
    for p in prompts:
        request = Request(messages=(Message("user", p.prompt),), max_new_tokens=tokens, selector="none")
        if p.id not in known:
            if arm:
                request = replace(request, selector="fixed", options={"arm": arm})
            text = [t for round in generate(request, pool) for t in round.tokens]
            ids = pool.target.tokenizer.encode(request)
            known[p.id] = {"id": p.id, "domain": p.domain, "prompt": ids, "tokens": text}
            with kept.open("a", encoding="utf-8") as file:
                print(json.dumps(known[p.id]), file=file)
        row = known[p.id]
        yield Answer(row["id"], row["domain"], tuple(row["prompt"]), tuple(row["tokens"]))


@torch.no_grad()
def features(target: HFTarget, answer: Answer) -> Tensor | None:
    """[prompt and answer, width] hidden states each token was predicted from, as in :class:`Verified`."""
    if not target.layers:
        return None
    text = [*answer.prompt, *answer.tokens]
    session = target.session(len(text), 1)
    session.prefill(text)
    assert session.hidden is not None
    return torch.cat([torch.zeros_like(session.hidden[:1]), session.hidden])


@torch.no_grad()
def replay(arm: Arm, target: HFTarget, answer: Answer, read: Tensor | None, k: int) -> Replay:
    """Walk an arm along an answer.

    Args:
        read: see :func:`features`.
    """
    k = min(k, arm.k or k)
    text, at, end = (*answer.prompt, *answer.tokens), len(answer.prompt), len(answer.prompt) + len(answer.tokens)
    warp, dice = Warp(Sampling(), at), Dice(0)
    drafter = arm.start(DraftContext((), warp, end))
    drafter.catch_up(_verified(text, read, 0, at))
    accepted, drafted, spent = list[int](), list[int](), 0.0
    while at < end:
        begin = time.perf_counter()
        proposal = drafter.propose(min(k, end - at - 1), dice) if end - at > 1 else Proposal(())
        spent += time.perf_counter() - begin
        kept = agreeing(proposal, text[at:end])
        accepted.append(kept)
        drafted.append(len(proposal.tokens))
        begin = time.perf_counter()
        drafter.catch_up(_verified(text, read, at, min(end, at + kept + 1)))
        spent += time.perf_counter() - begin
        at += kept + 1
    return Replay(
        id=answer.id,
        domain=answer.domain,
        arm=arm.name,
        k=k,
        rounds=len(accepted),
        tokens=len(answer.tokens),
        accepted=tuple(accepted),
        drafted=tuple(drafted),
        draft_ms=1000 * spent,
        agreement=_agreement(arm, target, answer, read),
    )


def agreeing(proposal: Proposal, text: Sequence[int]) -> int:
    """How many drafted tokens greedy verification keeps, if the target goes on with ``text``.

    The last token of the text is the target's own in any case.
    """
    node, kept = -1, 0
    while kept < len(text) - 1:
        children = [i for i in range(len(proposal.tokens)) if proposal.parent(i) == node]
        following = [i for i in children if proposal.tokens[i] == text[kept]]
        if not following:
            break
        node, kept = following[0], kept + 1
    return kept


def to_dict(result: Replay) -> dict[str, object]:
    """JSON-able."""
    return {**asdict(result), "length": result.length}


def _agreement(arm: Arm, target: HFTarget, answer: Answer, read: Tensor | None) -> float:
    drafter = arm.start(DraftContext((), Warp(Sampling(), 0), len(answer.prompt) + len(answer.tokens)))
    at = len(answer.prompt)
    text = (*answer.prompt, *answer.tokens)
    drafter.catch_up(_verified(text, read, 0, at))
    law = torch.zeros(len(answer.tokens), target.vocab_size, device=target.device)
    law[range(len(answer.tokens)), list(answer.tokens)] = 1
    verified = replace(_verified(text, read, at, len(text)), probs=law)
    rows = drafter.catch_up(verified)
    return float(overlap(verified, rows).mean()) if rows is not None else float("nan")


def _verified(text: Sequence[int], read: Tensor | None, start: int, end: int) -> Verified:
    return Verified(tuple(text[start:end]), features=None if read is None else read[start:end])
