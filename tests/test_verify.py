"""Losslessness by exact enumeration at vocabulary 4: the law of the output is the target's, to 1e-9."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch

from specdemo import engine
from specdemo.sampling import Dice, Warp
from specdemo.types import Proposal, Request, Sampling
from specdemo.verify import residual, verify
from tests.fakes import EveryOutcome, FakeTarget, TableDrafter, arm, pool, sequences, table, tokens_of

V, N, PROMPT = 4, 3, "12"
SAMPLINGS = {
    "plain": Sampling(temperature=1.0),
    "hot": Sampling(temperature=1.7),
    "top-p": Sampling(temperature=0.8, top_p=0.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "min-p": Sampling(temperature=1.0, min_p=0.3),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.6, frequency_penalty=0.5, presence_penalty=0.4),
    "all": Sampling(temperature=0.9, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.7),
}


def output_law(request: Request, arms, law) -> dict[tuple[int, ...], float]:
    dice, out = EveryOutcome(), defaultdict(float)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "Dice", lambda seed: dice)
        for _ in dice.runs():
            tokens = tokens_of(list(engine.generate(request, pool(FakeTarget(law, V), *arms))))
            out[tuple(tokens)] += dice.weight
    return out


@pytest.mark.parametrize("style", ["sample", "argmax", "tree", "siblings"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_output_law_is_the_targets(sampling: Sampling, style: str) -> None:
    law, draft = table(V, 1), table(V, 2)
    k = 3 if style in ("tree", "siblings") else 2
    request = Request(prompt=PROMPT, selector="fixed", k=k, max_new_tokens=N, sampling=sampling)
    got = output_law(request, [arm("a", lambda c: TableDrafter(draft, style, c))], law)
    warp = Warp(sampling, len(PROMPT))
    wanted = sequences(lambda c: warp(torch.tensor([list(law(c))], dtype=torch.float64), [list(c)])[0], [1, 2], N)
    assert sum(got.values()) == pytest.approx(1, abs=1e-9)
    for tokens, p in wanted.items():
        assert got.get(tokens, 0.0) == pytest.approx(p, abs=1e-9), tokens


@pytest.mark.parametrize("selector", ["round-robin", "hedgespec", "metasd-ucb"])
def test_output_law_survives_selection(selector: str) -> None:
    """A selector that looks at what was accepted must not bend the law (Prop. 3.1 of BanditSpec)."""
    law, sampling = table(V, 3), Sampling(temperature=1.0)
    arms = [arm(s, lambda c, s=s, i=i: TableDrafter(table(V, i), s, c)) for i, s in enumerate(("sample", "argmax"))]
    got = output_law(Request(prompt=PROMPT, selector=selector, k=1, max_new_tokens=4, sampling=sampling), arms, law)
    wanted = sequences(lambda c: torch.softmax(torch.tensor(law(c), dtype=torch.float64), -1), [1, 2], 4)
    assert max(abs(got.get(t, 0.0) - p) for t, p in wanted.items()) < 1e-9


def test_draft_vocabulary_is_mapped() -> None:
    """q over a reduced draft vocabulary: ids 3 and 1 of 4."""
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]], dtype=torch.float64)
    q, vocab = torch.tensor([[0.6, 0.4]], dtype=torch.float64), torch.tensor([3, 1])
    law = defaultdict(float)
    dice = EveryOutcome()
    for _ in dice.runs():
        column = dice.draw(q[0])
        proposal = Proposal((int(vocab[column]),), probs=q, vocab=vocab)
        verdict = verify(proposal, p, dice)
        law[proposal.tokens[0] if verdict.path else verdict.token] += dice.weight
    assert [law[v] for v in range(4)] == pytest.approx(p[0].tolist(), abs=1e-12)


def test_greedy_is_the_longest_matching_path() -> None:
    one_hot = torch.eye(4, dtype=torch.float64)
    #            root 1         after 1: 2      after 2: 3   after a wrong token: 0
    p = one_hot[[1, 2, 3, 0]]
    assert verify(Proposal((1, 2, 0)), p, Dice(0)) == verify(Proposal((1, 2, 0)), p, Dice(9))
    verdict = verify(Proposal((1, 2, 0)), p, Dice(0))
    assert (verdict.path, verdict.token) == ((0, 1), 3)
    tree = Proposal((0, 1, 2, 3), parents=(-1, -1, 1, 1))
    verdict = verify(tree, one_hot[[1, 0, 3, 0, 2]], Dice(0))
    assert (verdict.path, verdict.token) == ((1, 3), 2)


def test_zero_residual_falls_back_to_p() -> None:
    """p = q: nothing is left over, and rounding must not make NaN of it."""
    p = torch.tensor([0.25, 0.75, 0.0, 0.0], dtype=torch.float64)
    assert torch.equal(residual(p, p), p)
    assert residual(p, p.roll(1)).sum() == pytest.approx(1)


def test_a_duplicate_sibling_is_never_accepted_twice() -> None:
    """Deterministic children that repeat a token: the second has no mass left."""
    p = torch.tensor([[0.5, 0.5, 0, 0]] + [[0.0, 0, 0, 1]] * 2, dtype=torch.float64)
    law, dice = defaultdict(float), EveryOutcome()
    for _ in dice.runs():
        verdict = verify(Proposal((0, 0), parents=(-1, -1)), p, dice)
        law[0 if verdict.path else verdict.token] += dice.weight
        assert verdict.path in ((), (0,))
    assert (law[0], law[1]) == (0.5, 0.5)
