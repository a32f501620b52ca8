"""The loop: choose, draft, score, verify, cut, feed back. A generator of Rounds that knows no file, page or widget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdemo.feedback import Floats, divergence, likelihood_ratio, overlap
from specdemo.limits import cut
from specdemo.sampling import Dice, Warp
from specdemo.selectors import make_selector
from specdemo.target import fixed_rows
from specdemo.text import TextStream
from specdemo.types import (
    DraftContext,
    Drafter,
    Finish,
    Pool,
    Proposal,
    Request,
    Round,
    RoundFeedback,
    SpecdemoError,
    Start,
    Verdict,
    Verified,
)
from specdemo.verify import verify

PLAIN = -1  # the arm that drafts nothing


def generate(request: Request, pool: Pool) -> Iterator[Round]:
    """Answer a request, one Round at a time. Closing the generator stops the answer.

    Plain decoding is this very loop with the selector ``none``, scored through the same padded rows, so that speed and
    text are compared on one code path. Nothing is shared between runs but the read-only weights.

    Raises:
        SpecdemoError: the prompt does not fit the context window; unknown selector, option or arm; logits that are
            not numbers.
    """
    with torch.no_grad():
        run = _Run(request, pool)
    while run.finish is None:
        with torch.no_grad():  # never across a yield: it would leak into the caller's thread
            result = run.round()
        yield result


class _Run:
    """State of one answer."""

    def __init__(self, request: Request, pool: Pool) -> None:
        target = pool.target
        self.request, self.eos = request, frozenset() if request.ignore_eos else target.eos
        self.context = target.tokenizer.encode(request)
        self.prompt_tokens = len(self.context)
        self.room = target.window - self.prompt_tokens  # tokens that still fit
        self.budget = request.max_new_tokens  # tokens that may still be generated
        if self.room < 1:
            raise SpecdemoError(
                f"The prompt is {self.prompt_tokens} tokens long and the model's context window {target.window}, so "
                "there is no room for an answer. Shorten the prompt or start a new conversation."
            )
        self.finish: Finish | None = None if self.budget else "length"
        dice, choices = np.random.SeedSequence(request.seed).spawn(2)
        self.dice = Dice(dice)
        self.arms = pool.arms if request.k and request.selector != "none" else ()
        self.lengths = [min(request.k, arm.k or request.k) for arm in self.arms]
        self.selector = make_selector(
            request.selector, [a.name for a in self.arms], self.lengths, np.random.default_rng(choices), request.options
        )
        self.text = TextStream(target.tokenizer.decode, request.stop)
        self.index, self.at_ms = 0, 0.0
        self._open(pool)

    def _open(self, pool: Pool) -> None:
        """Read the prompt: the target, and the drafters if the selector wants all of them level from the start."""
        clock = _Clock()
        capacity = self.prompt_tokens + min(self.room, self.budget)
        self.warp = Warp(self.request.sampling, self.prompt_tokens)
        largest = max([self.request.k, *(arm.nodes for arm in pool.arms if self.request.k)])  # plain decoding, too
        self.session = pool.target.session(capacity, fixed_rows(largest + 1))
        self.session.prefill(self.context)
        self.features = _Features(capacity, self.session.hidden)
        start = DraftContext(self.request.memory, self.warp, capacity)
        self.drafters = [arm.start(start) for arm in self.arms]
        self.seen = [0 for _ in self.arms]  # how much of the context each drafter has processed
        if self.selector.information == "full":
            for arm in range(len(self.arms)):
                self._level(arm)
        self.start: Start | None = Start(
            prompt_tokens=self.prompt_tokens,
            prefill_ms=max(0.0, clock.lap() - self.session.compile_ms),
            compile_ms=self.session.compile_ms,
            rows=self.session.rows,
            arms=tuple(a.name for a in self.arms),
            drafters=tuple(a.name for a in self.arms),
        )

    def round(self) -> Round:
        """One round: the algorithm on one screen."""
        clock = _Clock()
        arm = self.selector.choose()
        k = 0 if arm == PLAIN else max(0, min(self.lengths[arm], self.budget - 1, self.room - 1))
        proposal = self._propose(arm, k)
        draft_ms = clock.lap()

        logits = self.warp.penalised(self.session.score(proposal), self._contexts(proposal))
        p = self.warp.law(logits)
        verdict = verify(proposal, p, self.dice)
        tokens, accepted, drafted = self._commit(proposal, verdict)
        verify_ms = clock.lap()

        rows = [node + 1 for node in (PLAIN, *verdict.path)[: len(tokens)]]
        verified = Verified(tokens, p[rows], self.features.append(self.session.hidden, rows))
        self._feed_back(arm, k, proposal, p, verified, drafted)
        feedback_ms = clock.lap()

        for drafter in self._learners(arm):
            drafter.observe(verified)
        learn_ms = clock.lap()

        shown = torch.softmax(logits, -1) if self.warp.greedy else p
        parents = [proposal.parent(i) + 1 for i in range(len(proposal.tokens))]
        result = Round(
            index=self.index,
            arm=arm,
            k=k,
            draft=proposal.tokens,
            parents=proposal.parents,
            draft_p=_at(shown[parents], proposal.tokens),
            draft_q=_drawn_with(proposal),
            drafted=drafted,
            accepted=accepted,
            path=verdict.path[:accepted],
            tokens=tokens,
            p=_at(shown[rows], tokens),
            pieces=self.text.release(finish=self.finish is not None),
            finish=self.finish,
            draft_ms=draft_ms,
            verify_ms=verify_ms,
            feedback_ms=feedback_ms,
            learn_ms=learn_ms,
            other_ms=clock.lap(),
            at_ms=self.at_ms + clock.total(),
            snapshot=self.selector.snapshot(),
            start=self.start,
        )
        self.index, self.at_ms, self.start = self.index + 1, result.at_ms, None
        return result

    def _propose(self, arm: int, k: int) -> Proposal:
        if not k:
            return Proposal(())
        self._level(arm)
        return self.drafters[arm].propose(k, self.dice)

    def _level(self, arm: int) -> None:
        """Let a drafter process what it has not seen."""
        seen = self.seen[arm]
        if seen < len(self.context):
            self.drafters[arm].catch_up(Verified(tuple(self.context[seen:]), features=self.features.since(seen)))
            self.seen[arm] = len(self.context)

    def _commit(self, proposal: Proposal, verdict: Verdict) -> tuple[tuple[int, ...], int, int]:
        """Cut the block and commit it. Returns its tokens, how many drafts were accepted, and how many count."""
        block = [*(proposal.tokens[i] for i in verdict.path), verdict.token]
        tokens, self.finish = cut(
            block, budget=self.budget, room=self.room, eos=self.eos, completes_stop=self.text.push
        )
        if self.finish is None:
            self.session.commit(verdict.path, verdict.token)
        self.context.extend(tokens)
        self.budget -= len(tokens)
        self.room -= len(tokens)
        accepted = len(tokens) - 1  # the token a block is cut at stands in for the bonus token, see types.py
        return tokens, accepted, accepted if len(tokens) < len(block) else len(proposal.tokens)

    def _feed_back(self, arm: int, k: int, proposal: Proposal, p: Tensor, verified: Verified, drafted: int) -> None:
        """Tell the selector what its information structure entitles it to."""
        feedback = RoundFeedback(arm, drafted, len(verified.tokens) - 1)
        if self.selector.information == "full":
            acceptance, ratio = self._counterfactuals(verified)
            feedback = replace(feedback, acceptance=acceptance, ratio=ratio)
            self.seen = [len(self.context) for _ in self.arms]
        if self.selector.information == "bandit":
            if not k:
                return  # the budget left no room for a draft: the arm was not tried
            feedback = replace(feedback, divergence=divergence(proposal, p, k))
        self.selector.update(feedback)

    def _counterfactuals(self, verified: Verified) -> tuple[Floats, Floats]:
        """Every drafter catches up; what it would have proposed gives its acceptance a and its ratio r."""
        a, r = np.zeros((2, len(verified.tokens), len(self.arms)))
        for i, drafter in enumerate(self.drafters):
            rows = drafter.catch_up(verified)
            if rows is not None:
                a[:, i], r[:, i] = overlap(verified, rows), likelihood_ratio(verified, rows)
        return a, r

    def _learners(self, arm: int) -> list[Drafter]:
        """Drafters that have processed everything before this block: all of them, or the one that drafted."""
        if self.selector.information == "full":
            return self.drafters
        return self.drafters[arm : arm + 1] if arm != PLAIN else []

    def _contexts(self, proposal: Proposal) -> list[list[int]]:
        """The token ids before each row; left out when no transform looks back."""
        if not self.warp.looks_back:
            return []
        contexts = [self.context]
        for i, token in enumerate(proposal.tokens):
            contexts.append([*contexts[proposal.parent(i) + 1], token])
        return contexts


class _Features:
    """The target's hidden states that each token of the context was predicted from, if any drafter reads them."""

    def __init__(self, capacity: int, prompt: Tensor | None) -> None:
        self.rows: Tensor | None = None
        self.length = 0
        if prompt is not None:
            self.length = len(prompt) + 1  # nothing comes before the first token
            self.rows = prompt.new_zeros(max(capacity, self.length), prompt.shape[-1])
            self.rows[1 : self.length] = prompt

    def append(self, hidden: Tensor | None, rows: Sequence[int]) -> Tensor | None:
        """Keep those of newly committed tokens, which came from ``rows`` of the last forward."""
        if self.rows is None or hidden is None:
            return None
        start, self.length = self.length, self.length + len(rows)
        self.rows[start : self.length] = hidden[rows]
        return self.rows[start : self.length]

    def since(self, position: int) -> Tensor | None:
        """Those of the tokens from ``position`` on."""
        return None if self.rows is None else self.rows[position : self.length]


class _Clock:
    """Milliseconds. Every lap ends in a read of device results, so no work is still in flight when it is taken."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()

    def lap(self) -> float:
        """Time since the last lap."""
        last, self._last = self._last, time.perf_counter()
        return 1000 * (self._last - last)

    def total(self) -> float:
        """Time from the start to the last lap."""
        return 1000 * (self._last - self._start)


def _at(p: Tensor, tokens: Sequence[int]) -> tuple[float, ...]:
    """p[i, tokens[i]] of each row."""
    return tuple(p[range(len(tokens)), list(tokens)].tolist()) if tokens else ()


def _drawn_with(proposal: Proposal) -> tuple[float, ...]:
    """The drafter's probability of each token it drafted."""
    if proposal.probs is None:
        return (1.0,) * len(proposal.tokens)
    columns = list(proposal.tokens)
    if proposal.vocab is not None:
        columns = [int((proposal.vocab == token).nonzero()[0]) for token in proposal.tokens]
    return _at(proposal.probs, columns)
