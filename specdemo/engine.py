"""The loop: choose, draft, score, verify, cut, feed back. A generator of Rounds that knows no file, page or widget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from specdemo.feedback import divergence
from specdemo.limits import cut
from specdemo.sampling import Dice, Warp
from specdemo.selectors import make_selector
from specdemo.target import fixed_rows
from specdemo.team import Draft, Evaluation, Features, Judged, Team
from specdemo.text import TextStream
from specdemo.times import Clock
from specdemo.types import (
    Arm,
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
        self.dice, self.times = Dice(dice), pool.times
        drafting = pool.arms if request.k else ()
        self.arms = drafting if request.selector != "none" else ()
        self.lengths = self._lengths(self.arms)
        names, rng = [arm.name for arm in self.arms], np.random.default_rng(choices)
        self.selector = make_selector(request.selector, names, self.lengths, rng, request.options, self.context)
        self.full = self.selector.information == "full"
        self.text = TextStream(target.tokenizer.decode, request.stop)
        self.index, self.at_ms, self.realised = 0, 0.0, tuple[float, ...]()
        self._open(pool, drafting)

    def _open(self, pool: Pool, drafting: Sequence[Arm]) -> None:
        """Read the prompt: the target, and the drafters if the selector wants all of them level from the start."""
        clock = Clock()
        self.capacity = self.prompt_tokens + min(self.room, self.budget)
        self.warp = Warp(self.request.sampling, self.prompt_tokens)
        largest = max([self.request.k, *(arm.nodes for arm in drafting)])  # plain decoding, too
        self.session = pool.target.session(self.capacity, fixed_rows(largest + 1))
        self.session.prefill(self.context)
        self.features = Features(self.capacity, self.session.hidden)
        self.team = self._team(self.arms, judged=self.full)
        if self.full:
            self._measure()
        prefill_ms = clock.lap() - self.session.compile_ms
        self.shadow = self._team(drafting, judged=True) if self.request.shadow and not self.full else None
        judged = self.arms if self.full else drafting if self.shadow else ()
        lengths, families = self._lengths(judged), tuple(arm.family for arm in judged)
        self.evaluation = Evaluation(lengths, families, self.request.calibrate) if judged else None
        names = tuple(arm.name for arm in self.arms)
        self.start: Start | None = Start(
            prompt_tokens=self.prompt_tokens,
            prefill_ms=max(0.0, prefill_ms),
            compile_ms=self.session.compile_ms,
            rows=self.session.rows,
            arms=names,
            drafters=names,
            evaluated=tuple(arm.name for arm in judged),
            lengths=tuple(lengths),
            families=families,
            shadow_ms=clock.lap(),
        )

    def _lengths(self, arms: Sequence[Arm]) -> list[int]:
        return [min(self.request.k, arm.k or self.request.k) for arm in arms]

    def _team(self, arms: Sequence[Arm], judged: bool) -> Team:
        """Drafters of their own for every team; those that are to be judged read the prompt at once."""
        start = DraftContext(self.request.memory, self.warp, self.capacity)
        team = Team([arm.start(start) for arm in arms], self.context, self.features, judged)
        for arm in range(len(arms) if judged else 0):
            team.level(arm)
        return team

    def _measure(self) -> None:
        """Let arms draft whose times nobody knows yet: what they cost belongs to the first choice."""
        for i, (arm, length) in enumerate(zip(self.arms, self.lengths, strict=True)):
            if self.times.unknown(arm.name):
                for k, tries in ((1, 1), (1, 2), (length, 1)):  # the first one warms up
                    self.times.drafted(arm.name, k, min(self.team.draft_ms(i, k) for _ in range(tries)))

    def round(self) -> Round:
        """One round: the algorithm on one screen."""
        clock = Clock()
        arm = self.selector.choose()
        k = self._draft_length(arm)
        read_ms, proposal = self._propose(arm, k, clock)
        draft_ms = clock.lap()

        logits = self.warp.penalised(self.session.score(proposal), self._contexts(proposal))
        p = self.warp.law(logits)
        verdict = verify(proposal, p, self.dice)
        tokens, accepted, drafted = self._commit(proposal, verdict)
        verify_ms = clock.lap()

        rows = [node + 1 for node in (PLAIN, *verdict.path)[: len(tokens)]]
        block = self._grow(tokens, p[rows], rows)
        if k:
            self.times.drafted(self.arms[arm].name, k, draft_ms)
        self.times.verified(proposal.parents is not None, verify_ms)
        draft = Draft(arm, k, len(self.context) - len(tokens), proposal, p, verdict.path, tokens, drafted)
        judged = self._feed_back(draft)
        feedback_ms, aside_ms = clock.lap(), 0.0
        if self.full and self.finish:  # nobody will choose again: what is judged now is for display and regret
            feedback_ms, aside_ms = 0.0, feedback_ms

        for drafter, verified in self._learners(arm, block, judged):
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
            draft_ms=read_ms + draft_ms,
            verify_ms=verify_ms,
            feedback_ms=feedback_ms,
            learn_ms=learn_ms,
            snapshot=self.selector.snapshot(),
            start=self.start,
            other_ms=clock.lap(),
            at_ms=self.at_ms + clock.total() - aside_ms,
            shadow_ms=aside_ms,
        )
        result = self._look_on(result, draft, judged, clock)
        self.times.ended(learn_ms, result.other_ms)
        self.index, self.at_ms, self.start = self.index + 1, result.at_ms, None
        return result

    def _draft_length(self, arm: int) -> int:
        """What the selector wants, as far as the arm, the budget and the window allow."""
        if arm == PLAIN:
            return 0
        return max(0, min(self.selector.draft_length(arm), self.lengths[arm], self.budget - 1, self.room - 1))

    def _propose(self, arm: int, k: int, clock: Clock) -> tuple[float, Proposal]:
        """Time of reading what the arm has not seen, and its draft."""
        if not k:
            return 0.0, Proposal(())
        self.team.level(arm)
        read_ms = clock.lap()
        self.times.caught_up(self.arms[arm].name, read_ms)
        return read_ms, self.team.drafters[arm].propose(k, self.dice)

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

    def _grow(self, tokens: tuple[int, ...], p: Tensor, rows: Sequence[int]) -> Verified:
        """Tell the teams that the context has grown by these tokens, which came from ``rows`` of the last forward."""
        self.features.append(self.session.hidden, rows)
        for team in (self.team, self.shadow):
            if team:
                team.committed(p)
        return Verified(tokens, p, self.features.since(len(self.context) - len(tokens)))

    def _feed_back(self, draft: Draft) -> Judged | None:
        """Tell the selector what its information structure entitles it to; returns what all arms would have done."""
        feedback, judged = RoundFeedback(draft.arm, draft.drafted, len(draft.tokens) - 1), None
        if self.full and self.evaluation:
            self.realised = self.evaluation.drafted(draft)
            if self.selector.due() or self.finish:
                judged = self._judge(self.evaluation)
                feedback = replace(feedback, acceptance=judged.acceptance, ratio=judged.ratio)
            feedback = replace(
                feedback,
                calibration=self.evaluation.calibration.factors() if self.request.calibrate else None,
                round_ms=self.times.round_ms([(arm.name, arm.nodes > 0) for arm in self.arms], max(self.lengths)),
                feedback_ms=self.times.evaluation.value,
            )
        if self.selector.information == "bandit":
            if not draft.k:
                return None  # the budget left no room for a draft: the arm was not tried
            feedback = replace(feedback, divergence=divergence(draft.proposal, draft.p, draft.k))
        self.selector.update(feedback)
        return judged

    def _judge(self, evaluation: Evaluation) -> Judged:
        """All arms read what they have not seen."""
        clock = Clock()
        judged = evaluation.judge(self.team)
        self.times.evaluated(clock.lap())
        return judged

    def _look_on(self, result: Round, draft: Draft, judged: Judged | None, clock: Clock) -> Round:
        """For display and regret: what the selector was told, or what the shadow finds out by itself."""
        realised = self.realised
        if self.shadow and self.evaluation:
            realised = self.evaluation.drafted(draft)
            judged = self.evaluation.judge(self.shadow)
        result = replace(result, realised=realised)
        if judged:
            result = replace(result, evaluated=judged.report(), shadow_ms=result.shadow_ms + clock.lap())
        return result

    def _learners(self, arm: int, block: Verified, judged: Judged | None) -> list[tuple[Drafter, Verified]]:
        """Who may learn from what: everybody from what was judged, else the drafter that drafted from its block."""
        if self.full:
            return [(drafter, judged.text) for drafter in self.team.drafters] if judged else []
        return [(self.team.drafters[arm], block)] if arm != PLAIN else []

    def _contexts(self, proposal: Proposal) -> list[list[int]]:
        """The token ids before each row; left out when no transform looks back."""
        if not self.warp.looks_back:
            return []
        contexts = [self.context]
        for i, token in enumerate(proposal.tokens):
            contexts.append([*contexts[proposal.parent(i) + 1], token])
        return contexts


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
