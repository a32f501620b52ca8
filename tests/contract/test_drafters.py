"""What every registered drafter must keep."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdemo.drafters import DRAFTERS
from specdemo.drafters.suffix import SuffixAutomaton
from specdemo.sampling import Dice, Warp
from specdemo.types import DraftContext, Sampling, Verified
from specdemo.verify import draft_law
from tests import heads, tiny

GREEDY = Sampling()
PROMPT = (5, 9, 7, 5, 9, 8, 5, 9)


@pytest.fixture(scope="module")
def model():
    return tiny.target()


@pytest.fixture(scope="module")
def loaded(model, tmp_path_factory):
    """Every family with the options it needs, loaded for the tiny target."""
    folder = tmp_path_factory.mktemp("heads")
    return {name: DRAFTERS[name].load(model, **heads.options(name, folder)) for name in DRAFTERS}


def begun(start, model, sampling=GREEDY, earlier=()):
    drafter = start(DraftContext(earlier, Warp(sampling, len(PROMPT)), 100))
    drafter.catch_up(Verified(PROMPT, features=heads.states(model, list(PROMPT))))
    return drafter


def started(name, model, sampling=GREEDY, earlier=(), **options):
    return begun(DRAFTERS[name].load(model, **options), model, sampling, earlier)


@pytest.mark.parametrize("name", DRAFTERS)
def test_proposals_are_drawn_from_their_law(name, model, loaded) -> None:
    """The most frequent public correctness bug of this field: q that is not what was drawn from."""
    drafter, dice = begun(loaded[name], model, Sampling(1.2, top_k=6)), Dice(0)
    proposals = [drafter.propose(2, dice) for _ in range(1500)]
    for position in range(2):
        count = np.bincount([p.tokens[position] for p in proposals], minlength=64) / len(proposals)
        if proposals[0].probs is None:
            assert count.max() == 1
        else:
            q = torch.stack([draft_law(p, position, torch.zeros(64)) for p in proposals]).mean(0).double().numpy()
            assert 0.5 * np.abs(count - q).sum() < 0.06


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_proposals_are_certain_and_at_most_k(name, model, loaded) -> None:
    drafter = begun(loaded[name], model)
    for k in range(6):
        proposal = drafter.propose(k, Dice(0))
        assert len(proposal.tokens) <= k
        assert proposal.probs is None


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)], ids=["greedy", "sampled"])
def test_catch_up_tells_what_would_have_been_proposed(name, sampling, model, loaded) -> None:
    """Teacher-forced rows at each position equal the first draft of a drafter that stands there; drafting in between
    and the grouping into calls change nothing."""
    text, dice = (7, 5, 9, 8, 30, 31, 5, 9, 7), Dice(0)
    target_law = torch.full((1, 64), 1 / 64, dtype=torch.float64)
    grouped, single = begun(loaded[name], model, sampling), begun(loaded[name], model, sampling)
    whole, n = [*PROMPT, *text], len(PROMPT)
    read = heads.states(model, whole)
    grouped.propose(4, dice)
    rows = grouped.catch_up(heads.verified(whole, read, n, n + 4, target_law.repeat(4, 1)))
    grouped.propose(3, dice)
    more = grouped.catch_up(heads.verified(whole, read, n + 4, n + 9, target_law.repeat(5, 1)))
    for i in range(len(text)):
        rows_i, j = (rows, i) if i < 4 else (more, i - 4)
        proposal = single.propose(1, dice)
        if rows_i.tokens is not None:
            assert rows_i.tokens[j] == (proposal.tokens or (-1,))[0]
        elif proposal.probs is not None:
            assert torch.allclose(rows_i.probs[j], proposal.probs[0], atol=1e-9)
        else:
            column = int(rows_i.probs[j].argmax())
            assert (column if rows_i.vocab is None else int(rows_i.vocab[column])) == proposal.tokens[0]
        single.catch_up(heads.verified(whole, read, n + i, n + i + 1))


@pytest.mark.parametrize("name", DRAFTERS)
def test_families_explain_themselves(name) -> None:
    assert DRAFTERS[name].summary
    assert all(v is None or isinstance(v, (int, str, bool)) for v in DRAFTERS[name].options.values())


def test_prompt_lookup_copies_after_the_latest_longest_match(model) -> None:
    #            ... 5 9 8 | 5 9: the pair was last followed by 8, 5, 9, and then the copy goes on with itself
    assert started("prompt-lookup", model).propose(5, Dice(0)).tokens == (8, 5, 9, 8, 5)
    assert started("prompt-lookup", model, longest=4, shortest=4).propose(5, Dice(0)).tokens == ()


def test_suffix_memory_is_switchable_and_ends_with_the_answer(model) -> None:
    earlier = ((1, 8, 5, 9, 40, 41), (50, 51))
    assert started("suffix", model, earlier=earlier).propose(3, Dice(0)).tokens == (8, 5, 9)
    # "8 5 9" of the memory is longer than "5 9" of the prompt; nothing is copied across the end of an answer
    assert started("suffix", model, earlier=earlier, memory=True).propose(5, Dice(0)).tokens == (40, 41)


@pytest.mark.parametrize("seed", range(8))
def test_suffix_automaton_against_brute_force(seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 3, 120).tolist()
    automaton = SuffixAutomaton()
    for n, token in enumerate(text):
        automaton.append(token)
        seen = text[: n + 1]
        longest = next((m for m in range(n, 0, -1) if occurs(seen[-m:], seen[:-1]) is not None), 0)
        state = automaton.link[automaton.last]
        assert (automaton.length[state] if state > 0 else 0) == longest
        if longest:
            assert automaton.end[state] == occurs(seen[-longest:], seen[:-1])


@pytest.mark.parametrize("seed", range(4))
def test_suffix_automaton_walk_against_brute_force(seed: int) -> None:
    """Matching another text: the longest suffix of it that occurs in the automaton's."""
    rng = np.random.default_rng(seed)
    text, other = rng.integers(0, 3, 60).tolist(), rng.integers(0, 3, 60).tolist()
    automaton, state, matched = SuffixAutomaton(), 0, 0
    for token in text:
        automaton.append(token)
    for n, token in enumerate(other):
        state, matched = automaton.walk(state, matched, token)
        assert matched == next(
            (m for m in range(n + 1, 0, -1) if occurs(other[n + 1 - m : n + 1], text) is not None), 0
        )


def occurs(part: list[int], text: list[int]) -> int | None:
    """End of the latest occurrence of ``part`` in ``text``."""
    ends = [i for i in range(len(part), len(text) + 1) if text[i - len(part) : i] == part]
    return ends[-1] if ends else None
