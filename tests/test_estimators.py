"""Counterfactual estimates against exact enumeration: a chain of four tokens, drafters good in some contexts only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
import torch

from specdemo.estimators import FORMS, AcceptanceWindows, VirtualRounds
from specdemo.sampling import Dice
from specdemo.types import Proposal, SpecdemoError
from specdemo.verify import verify
from tests.fakes import EveryOutcome

V, START = 4, (0, 1)
Text = tuple[int, ...]
RNG = np.random.default_rng(0)


def normal(law: np.ndarray) -> np.ndarray:
    return law / law.sum(-1, keepdims=True)


P = normal(RNG.gamma(0.6, size=(V, V, V)))  # the target's law after each pair of tokens
NOISE = normal(RNG.gamma(0.4, size=(2, V, V, V)))
# mediocre everywhere; right after the tokens 0 and 1, which it prefers, and wrong after the others; too sure of itself
SPECIALISED = np.where(np.arange(V)[None, :, None] < 2, 0.9 * P + 0.1 * NOISE[1], NOISE[1]) * [3, 3, 0.5, 0.5]
Q = np.stack([0.5 * P + 0.5 * NOISE[0], normal(SPECIALISED), normal(P**3)])
A, R = np.minimum(P, Q).sum(-1), np.minimum(1, Q / P)
CHILDREN = np.argsort(-Q, -1)[..., :2]  # a deterministic tree: two children of every node
MASS, HIT = np.take_along_axis(np.stack([P] * 3), CHILDREN, -1).sum(-1), np.zeros_like(Q)
np.put_along_axis(HIT, CHILDREN, 1.0, -1)


def positions(text: Text, a: np.ndarray = A, r: np.ndarray = R) -> tuple[np.ndarray, np.ndarray, float]:
    """a and r [positions, drafters] along a text, and the text's probability."""
    whole, weight = (*START, *text), 1.0
    rows = [(whole[t], whole[t + 1], x) for t, x in enumerate(text)]
    for c, d, x in rows:
        weight *= P[c, d, x]
    return np.array([a[:, c, d] for c, d, _ in rows]), np.array([r[:, c, d, x] for c, d, x in rows]), weight


def texts(n: int) -> Iterator[Text]:
    return product(range(V), repeat=n)


def expected_block(kept: np.ndarray, k: int, context: Text = START) -> float:
    """E[accepted + 1] of a round of k drafts; kept: [V, V, V] probability of drafting a token and keeping it."""
    c, d = context[-2:]
    return 1 + sum(float(kept[c, d, v]) * expected_block(kept, k - 1, (d, v)) for v in range(V)) if k else 1.0


def mean_estimate(form: str, k: int, a: np.ndarray = A, r: np.ndarray = R) -> np.ndarray:
    """[drafters] E of the estimate over texts x ~ p."""
    mean = np.zeros(len(a))
    for text in texts(k):
        seen_a, seen_r, weight = positions(text, a, r)
        mean += weight * AcceptanceWindows([k] * len(a), form).push(seen_a, seen_r)[0]
    return mean


# ----------------------------------------------------------------------------------------------- acceptance lengths


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("form", ["iw-a", "iw-b"])
def test_windows_are_exactly_unbiased_on_target_text(form: str, k: int) -> None:
    truth = [expected_block(np.minimum(P, q), k) for q in Q]
    assert mean_estimate(form, k) == pytest.approx(truth, abs=1e-10)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("form", ["iw-a", "iw-b"])
def test_windows_are_exactly_unbiased_for_deterministic_trees(form: str, k: int) -> None:
    """a = the target's mass on the children, r = 1 if the token is one of them."""
    truth = [expected_block(P * hit, k) for hit in HIT]
    assert mean_estimate(form, k, MASS, HIT) == pytest.approx(truth, abs=1e-10)


def test_the_truth_about_trees_is_what_verification_does() -> None:
    """Depth 2, every outcome of the dice: E[accepted + 1] is the mass of the children, level by level."""
    first = [int(v) for v in CHILDREN[0][START]]
    second = [[int(v) for v in CHILDREN[0][START[1], v]] for v in first]
    tree = Proposal((*first, *second[0], *second[1]), (-1, -1, 0, 0, 1, 1))
    laws = [P[START], *(P[START[1], v] for v in first), *(P[v, w] for i, v in enumerate(first) for w in second[i])]
    p, dice, mean = torch.tensor(np.array(laws)), EveryOutcome(), 0.0
    for _ in dice.runs():
        accepted = len(verify(tree, p, dice).path)
        mean += dice.weight * (accepted + 1)
    assert mean == pytest.approx(expected_block(P * HIT[0], 2), abs=1e-10)


def test_the_plug_in_is_biased_by_a_covariance() -> None:
    """K = 2: truth - plug-in = Cov_p(r_1, a_2), which is large for the drafter that is good after its own tokens."""
    truth = np.array([expected_block(np.minimum(P, q), 2) for q in Q])
    p, r, after = P[START], R[:, START[0], START[1]], A[:, START[1]]
    covariance = (p * r * after).sum(-1) - (p * r).sum(-1) * (p * after).sum(-1)
    assert truth - mean_estimate("plug-in", 2) == pytest.approx(covariance, abs=1e-12)
    assert covariance[1] > 0.02
    longer = expected_block(np.minimum(P, Q[1]), 4)
    assert longer - mean_estimate("plug-in", 4)[1] > 0.03


def test_by_hand_where_the_plug_in_is_wrong() -> None:
    """p = (1/2, 1/2), q = (1, 0), then q = p after the first token and disjoint after the second: truth 2, not 1.75."""
    mean = dict.fromkeys(FORMS, 0.0)
    for r, a in ((1.0, 1.0), (0.0, 0.0)):  # the token committed first, each with probability 1/2
        for form in FORMS:
            windows = AcceptanceWindows([2], form)
            mean[form] += 0.5 * float(windows.push(np.array([[0.5], [a]]), np.array([[r], [a]]))[0, 0])
    assert mean == pytest.approx({"iw-a": 2.0, "iw-b": 2.0, "plug-in": 1.75})


def test_all_forms_agree_at_temperature_0_and_by_hand() -> None:
    """K = 2, match bits 1 1 0 1: windows of positions 0, 1, 2 see (1, 1), (1, 0), (0, 1)."""
    for form in FORMS:
        windows, got = AcceptanceWindows([2], form), []
        for bit in (1.0, 1.0, 0.0, 1.0):
            got.append(windows.push(np.array([bit]), np.array([bit]))[:, 0].tolist())
        assert got == [[], [3.0], [2.0], [1.0]]


def test_blocks_are_the_same_as_positions_one_by_one_and_an_arm_keeps_its_own_length() -> None:
    rng = np.random.default_rng(1)
    a, r = rng.random((2, 30, 3))
    one, blocks = AcceptanceWindows([1, 2, 4]), AcceptanceWindows([1, 2, 4])
    singly = [length for t in range(30) for length in one.push(a[t], r[t])]
    together = np.concatenate(
        [blocks.push(a[s], r[s]) for s in (slice(0, 2), slice(2, 3), slice(3, 17), slice(17, 30))]
    )
    assert together == pytest.approx(np.array(singly))
    assert len(singly) == 27
    assert together[0] == pytest.approx(
        [1 + a[0, 0], 1 + a[0, 1] + r[0, 1] * a[1, 1], 1 + sum(r[:j, 2].prod() * a[j, 2] for j in range(4))]
    )


def test_an_unknown_form_is_named() -> None:
    with pytest.raises(SpecdemoError, match="iw-a, iw-b, plug-in"):
        AcceptanceWindows([2], "iw-c")  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- virtual rounds


def blocks(arm: int, k: int, context: Text) -> Iterator[tuple[Text, float]]:
    """Every block a round of k drafts can commit, and its probability: what is drafted and rejected comes back as
    p - min(p, q)."""
    c, d = context[-2:]
    kept = np.minimum(P[c, d], Q[arm, c, d]) if k else np.zeros(V)
    for v in range(V):
        yield (v,), float(P[c, d, v] - kept[v])
        if k:
            yield from (((v, *rest), float(kept[v]) * w) for rest, w in blocks(arm, k - 1, (d, v)))


def decode(arm: int, k: int, n: int) -> tuple[dict[Text, float], float, float]:
    """Exactly: the law of the first n tokens that an arm writes alone, expected rounds that end within them, and
    expected rounds begun until they are there."""
    begins, law, ended = Counter({(): 1.0}), Counter[Text](), 0.0
    for length in range(n):
        for prefix in [text for text in begins if len(text) == length]:
            for block, w in blocks(arm, k, (*START, *prefix)):
                text = (*prefix, *block)
                if len(text) <= n:
                    ended += begins[prefix] * w
                (law if len(text) >= n else begins)[text[:n]] += begins[prefix] * w
    return law, ended, sum(begins.values())


def test_virtual_rounds_are_exact_whoever_wrote_the_text() -> None:
    """All arms (three drafters with K = 1, 2, 3), from the exact law of the text of each of three of them."""
    n, arms = 4, [(i, k) for k in (1, 2, 3) for i in range(3)]
    runs = {arm: decode(*arm, n) for arm in arms}
    ended, begun = (np.array([runs[arm][j] for arm in arms]) for j in (1, 2))
    drafters = [i for i, _ in arms]
    for writer in ((0, 2), (1, 3), (2, 1)):
        mean, until = np.zeros((2, len(arms)))
        for text, weight in runs[writer][0].items():
            rho = VirtualRounds([k for _, k in arms]).push(positions(text)[1][:, drafters])
            mean += weight * rho.sum(0)
            until += weight * (1 + rho[:-1].sum(0))
        assert mean == pytest.approx(ended, abs=1e-10)
        assert until == pytest.approx(begun, abs=1e-10)


def speculate(arm: int, k: int, n: int, dice: Dice) -> tuple[Text, int]:
    """Really decode n tokens with verify(): the text, and the rounds it took."""
    text, rounds = list[int](), 0
    while len(text) < n:
        context, drafts, rounds = (*START, *text), list[int](), rounds + 1
        for _ in range(k):
            c, d = (*context, *drafts)[-2:]
            drafts.append(dice.draw(torch.tensor(Q[arm, c, d])))
        before = [(*context, *drafts[:j])[-2:] for j in range(k + 1)]
        q, p = (np.array([law[c] for c in before]) for law in (Q[arm], P))
        verdict = verify(Proposal(tuple(drafts), probs=torch.tensor(q[:k])), torch.tensor(p), dice)
        text += [*(drafts[i] for i in verdict.path), verdict.token]
    return tuple(text[:n]), rounds


def test_virtual_rounds_are_right_under_real_speculative_sampling() -> None:
    """99 % intervals: rounds that arm i really takes against its virtual rounds on its own texts and on another's."""
    n, k, count, dice = 20, 3, 120, Dice(np.random.SeedSequence(5))
    real, virtual = np.zeros((3, count)), np.zeros((3, count, 3))
    for writer in range(3):
        for j in range(count):
            text, real[writer, j] = speculate(writer, k, n, dice)
            virtual[writer, j] = 1 + VirtualRounds([k] * 3).push(positions(text)[1])[:-1].sum(0)
    for writer, reader in product(range(3), range(3)):
        mine, theirs = real[reader], virtual[writer, :, reader]
        error = np.sqrt((mine.var(ddof=1) + theirs.var(ddof=1)) / count)
        assert abs(mine.mean() - theirs.mean()) < 2.576 * error
    assert abs(real[0].mean() - real[2].mean()) > 0.5  # the arms differ by more than the test allows


def test_virtual_rounds_by_hand() -> None:
    """Match bits 1 1 0 1 1 1: alone, K = 2 would write (1 1 +0) (1 1 +1), K = 1 (1 +1) (0) (1 +1) then one
    draft more."""
    rounds = VirtualRounds([2, 1])
    ends = np.array([rounds.push(np.full(2, bit)) for bit in (1.0, 1.0, 0.0, 1.0, 1.0, 1.0)])
    assert ends[:, 0].tolist() == [0, 0, 1, 0, 0, 1]
    assert ends[:, 1].tolist() == [0, 1, 1, 0, 1, 0]


def test_rounds_of_several_draft_lengths_at_once() -> None:
    x = np.random.default_rng(2).random((40, 3))
    together = VirtualRounds(np.repeat([[1], [2], [3], [4]], 3, axis=1)).push(x)
    assert together.shape == (40, 4, 3)
    for k in (1, 2, 3, 4):
        assert together[:, k - 1] == pytest.approx(VirtualRounds([k] * 3).push(x))


def test_a_text_may_start_within_a_round() -> None:
    """start = 1/2, K = 1: p = (2/3, 1/3), so a position that is accepted for sure ends a round with 1/3."""
    assert VirtualRounds([1], 0.5).push(np.ones(1)) == pytest.approx([1 / 3])
    steady, x = (
        VirtualRounds([1, 2, 3], 0.5),
        np.full(3, 0.5),
    )  # the density of an arm that accepts every other position
    for _ in range(3):
        assert steady.push(x) == pytest.approx([1 / 1.5, 1 / 1.75, 1 / 1.875])


def test_calibration_by_depth() -> None:
    """Factors 1 and 1/2, K = 2, a = 0.8, r = 0.6 everywhere, and an arm whose factors would lead beyond 1."""
    factors = np.array([[1.0, 0.5], [2.0, 2.0]])
    a, r = np.full((2, 2), 0.8), np.full((2, 2), 0.6)
    assert AcceptanceWindows([2, 2]).push(a, r, factors) == pytest.approx(np.array([[1 + 0.8 + 0.6 * 0.4, 3.0]]))
    assert AcceptanceWindows([2, 2], "plug-in").push(a, r, factors) == pytest.approx(
        np.array([[1 + 0.8 + 0.8 * 0.4, 3.0]])
    )
    rho = VirtualRounds([2, 2]).push(np.full((3, 2), 0.8), factors)
    second = 0.2 * 0.2 + 0.8 * 0.6  # at depth 0, at depth 1
    third = 0.2 * second + 0.6 * (0.8 * 0.2) + 0.8 * 0.4
    assert rho == pytest.approx(np.array([[0.2, 0], [second, 0], [third, 1]]))
