"""Compare an answer with plain decoding of the same request, token by token."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import torch

from specdemo.engine import generate
from specdemo.metrics import token_ids, tokens_per_second
from specdemo.sampling import Warp
from specdemo.target import fixed_rows
from specdemo.types import Pool, Proposal, Request, Round

NOT_GREEDY = "At temperature above 0 losslessness is a property of the law tokens are drawn from, not of one answer."


def check(request: Request, pool: Pool, rounds: Sequence[Round]) -> dict[str, Any]:
    """Decode plainly what ``rounds`` answered and compare. Costs as much as a plain answer.

    Plain decoding runs in the same engine through the same number of rows. An answer that was stopped is compared as
    far as it goes.

    Returns:
        JSON-able: ``identical`` (None where it does not apply, with ``why``), ``tokens`` compared,
        ``first_difference`` (None, or ``index``, and for both answers ``token``, ``text`` and ``margin``: how far the
        best logit was above the second there, penalties applied, replayed exactly as it was computed; the plain
        answer's are ``plain_token`` ...), ``plain_tokens_per_second`` as measured by the way, and ``rows``.
    """
    steps = checking(request, pool, rounds)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: dict[str, Any] = end.value
            return result


def checking(request: Request, pool: Pool, rounds: Sequence[Round]) -> Generator[int, None, dict[str, Any]]:
    """As :func:`check`, yielding how many tokens have been decoded so far; closing the generator gives up."""
    if request.sampling.temperature > 0:
        return {"identical": None, "why": NOT_GREEDY, "tokens": 0, "first_difference": None}
    answer = token_ids(rounds)
    stopped = bool(rounds) and rounds[-1].finish is None
    plain_request = replace(request, selector="none", options={})
    plain_rounds: list[Round] = []
    for round in generate(plain_request, pool):
        plain_rounds.append(round)
        yield len(plain_rounds)
        if stopped and len(plain_rounds) >= len(answer):
            break
    plain = token_ids(plain_rounds)
    index = next((i for i, (a, b) in enumerate(zip(plain, answer, strict=False)) if a != b), None)
    if index is None and len(plain) != len(answer):
        index = min(len(plain), len(answer))
    result: dict[str, Any] = {
        "identical": index is None,
        "tokens": len(answer) if index is None else index,
        "first_difference": None,
        "plain_tokens_per_second": tokens_per_second(plain_rounds),
        "rows": rounds[0].start.rows if rounds and rounds[0].start else None,
    }
    if index is not None:
        ours = _at(request, pool, rounds, index)
        theirs = {f"plain_{key}": value for key, value in _at(plain_request, pool, plain_rounds, index).items()}
        result["first_difference"] = {"index": index, **ours, **theirs}
    return result


def _at(request: Request, pool: Pool, rounds: Sequence[Round], index: int) -> dict[str, Any]:
    """Token, text and margin at ``index`` of an answer; all None behind its end."""
    answer = token_ids(rounds)
    if index >= len(answer):
        return {"token": None, "text": None, "margin": None}
    token = answer[index]
    return {
        "token": token,
        "text": pool.target.tokenizer.decode([token]),
        "margin": margin(request, pool, rounds, index),
    }


def _rows(request: Request, rounds: Sequence[Round]) -> int:
    return rounds[0].start.rows if rounds[0].start else fixed_rows(request.k + 1)


@torch.no_grad()
def margin(request: Request, pool: Pool, rounds: Sequence[Round], index: int) -> float:
    """Best logit minus second best at ``index`` of an answer, by the very forwards that the answer was computed by."""
    prompt = pool.target.tokenizer.encode(request)
    capacity = len(prompt) + min(pool.target.window - len(prompt), request.max_new_tokens)
    session = pool.target.session(capacity, _rows(request, rounds))
    session.prefill(prompt)
    context = list(prompt)
    for round in rounds:
        logits = session.score(Proposal(round.draft, round.parents))
        if index < len(round.tokens):
            row = 0 if index == 0 else round.path[index - 1] + 1
            context.extend(round.tokens[:index])
            best = Warp(request.sampling, len(prompt)).penalised(logits[row : row + 1], [context])[0].topk(2).values
            return float(best[0] - best[1])
        session.commit(round.path, round.tokens[-1])
        context.extend(round.tokens)
        index -= len(round.tokens)
    raise IndexError(index)
