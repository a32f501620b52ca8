"""Exactness on the real embedded model; a sample of what ``python -m tests.lossless.exhaustive`` checks in full."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chi2_contingency

from specdemo import engine
from specdemo.target import fixed_rows
from specdemo.types import Arm, Pool, Proposal, Request, Sampling, Verdict
from tests.fakes import TableDrafter
from tests.lossless import cases

pytestmark = pytest.mark.model
NEW = 24


@pytest.mark.parametrize("k", [0, 1, 4, 8])
@pytest.mark.parametrize("prompt", cases.prompts()[:3])
def test_float32_greedy_is_transformers_generate(prompt: str, k: int) -> None:
    wanted = cases.transformers_tokens("float32", prompt, NEW)
    assert tuple(cases.run("float32", cases.request(prompt, k, NEW, "round-robin"))) == wanted


@pytest.mark.parametrize("drafter", [*cases.DRAFTER_OPTIONS, *cases.TREES])
@pytest.mark.parametrize("prompt", cases.prompts()[1:3])
def test_bfloat16_greedy_is_the_engines_plain_decoding(prompt: str, drafter: str) -> None:
    """Token-identical in bf16, for every draft length of one fixed shape."""
    plain = cases.plain_tokens("bfloat16", prompt, NEW, 5, drafter in cases.TREES)
    for k in (1, 3, 5):
        wanted = cases.with_memory(cases.request(prompt, k, NEW, "fixed", arm=drafter), plain)
        assert tuple(cases.run("bfloat16", wanted)) == plain


class Remembering:
    """The embedded target, each (context, draft) computed once: thousands of short runs become cheap."""

    def __init__(self) -> None:
        self.target, self.seen = cases.target("bfloat16"), dict[tuple, torch.Tensor]()
        for name in ("vocab_size", "eos", "window", "tokenizer"):
            setattr(self, name, getattr(self.target, name))

    def session(self, capacity: int, rows: int):
        return RememberingSession(self, rows)

    def logits(self, context: list[int], draft: tuple[int, ...], rows: int) -> torch.Tensor:
        key = (*context, -1, *draft)
        if key not in self.seen:
            session = self.target.session(64, rows)
            session.prefill(context)
            self.seen[key] = session.score(Proposal(draft))
        return self.seen[key]


class RememberingSession:
    compile_ms = 0.0
    hidden = None

    def __init__(self, target: Remembering, rows: int) -> None:
        self.target, self.rows, self.text, self.draft = target, rows, list[int](), Proposal(())

    def prefill(self, tokens: list[int]) -> None:
        self.text = list(tokens)

    def score(self, proposal: Proposal) -> torch.Tensor:
        self.draft = proposal
        return self.target.logits(self.text, proposal.tokens, self.rows)

    def commit(self, path: tuple[int, ...], token: int) -> None:
        self.text += [*(self.draft.tokens[i] for i in path), token]


def samples(target: Remembering, selector: str, n: int, first_seed: int) -> Counter:
    """``n`` continuations of three tokens; the drafter's law is the target's, bent by the last token."""

    laws: dict[tuple[int, ...], torch.Tensor] = {}

    class Bent(TableDrafter):
        def row(self, context: list[int]) -> torch.Tensor:
            key = tuple(context)
            if key not in laws:
                logits = target.logits(list(context), (), fixed_rows(3))[:1].clone()
                top = logits[0].topk(12).indices
                logits[0, top] += 1.5 * torch.sin(top.float() * (1 + context[-1] % 7))
                laws[key] = self.transform(logits, [])[0]
            return laws[key]

    arms = (Arm("bent", "fake", lambda c: Bent(None, "sample", c)),)
    pool, counts = Pool("p", target, arms), Counter()
    for seed in range(first_seed, first_seed + n):
        wanted = Request(
            prompt="The weather today is", selector=selector, k=2, max_new_tokens=3, seed=seed, ignore_eos=True,
            sampling=Sampling(temperature=1.0, top_k=4),
        )  # fmt: skip
        counts[tuple(cases.tokens(list(engine.generate(wanted, pool))))] += 1
    return counts


def p_value(a: Counter, b: Counter) -> float:
    """Chi-square two-sample test; continuations seen fewer than ten times are one cell."""
    both = a + b
    common = [t for t, n in both.items() if n >= 10]
    table = np.array([[c[t] for t in common] + [c.total() - sum(c[t] for t in common)] for c in (a, b)])
    return float(chi2_contingency(table[:, table.sum(0) > 0]).pvalue)


def test_sampled_continuations_follow_the_plain_law() -> None:
    """Two samples of 5,000 continuations, with and without a drafter, are not told apart; a verifier that keeps every
    draft it likes is."""
    target = Remembering()
    plain = samples(target, "none", 5000, 0)
    speculative = samples(target, "fixed", 5000, 50_000)
    assert len(plain) > 20
    assert p_value(plain, speculative) > 0.01

    def greedy_acceptance(proposal: Proposal, p: torch.Tensor, rng) -> Verdict:
        """The classic defect: a draft is kept if the target allows it at all."""
        path = []
        for i, token in enumerate(proposal.tokens):
            if float(p[i][token]) <= 0:
                break
            path.append(i)
        return Verdict(tuple(path), rng.draw(p[len(path)]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "verify", greedy_acceptance)
        assert p_value(plain, samples(target, "fixed", 1500, 90_000)) < 1e-6
