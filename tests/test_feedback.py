"""Counterfactual estimates against exact enumeration and hand-computed traces."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from specdemo.estimators import AcceptanceWindows, VirtualRounds
from specdemo.feedback import divergence, likelihood_ratio, overlap
from specdemo.types import Proposal, Rows, Verified
from tests.fakes import table

V = 4


def laws(seed: int):
    law = table(V, seed)
    return lambda context: torch.softmax(torch.tensor(law(context), dtype=torch.float64), -1)


def expected_block(p, q, context: tuple[int, ...], k: int) -> float:
    """E[accepted + 1] of one round of k drafts: 1 + sum over drafted prefixes of prod min(p, q)."""
    if not k:
        return 1.0
    kept = torch.minimum(p(context), q(context))
    return 1 + sum(float(kept[v]) * expected_block(p, q, (*context, v), k - 1) for v in range(V))


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("seed", [2, 3])
def test_windows_are_exactly_unbiased_on_target_text(k: int, seed: int) -> None:
    """Mean over all continuations x ~ p of the estimate is the true expected block, per arm and draft length."""
    p, q, shorter = laws(1), laws(seed), max(1, k - 1)
    mean = np.zeros(2)
    for text in product(range(V), repeat=k):
        windows, weight, context = AcceptanceWindows([k, shorter]), 1.0, (1, 2)
        done = []
        for token in text:
            verified = Verified((token,), p(context)[None])
            rows = Rows(q(context)[None])
            a, r = overlap(verified, rows), likelihood_ratio(verified, rows)
            done += windows.push(np.repeat(a, 2), np.repeat(r, 2))
            weight *= float(p(context)[token])
            context = (*context, token)
        assert len(done) == 1
        mean += weight * done[0]
    assert mean[0] == pytest.approx(expected_block(p, q, (1, 2), k), abs=1e-12)
    assert mean[1] == pytest.approx(expected_block(p, q, (1, 2), shorter), abs=1e-12)


def test_windows_by_hand() -> None:
    """K = 2, match bits 1 1 0 1: windows of positions 0, 1, 2 see (1,1), (1,0), (0,1)."""
    windows, got = AcceptanceWindows([2]), []
    for bit in (1.0, 1.0, 0.0, 1.0):
        got.append([float(w[0]) for w in windows.push(np.array([bit]), np.array([bit]))])
    assert got == [[], [3.0], [2.0], [1.0]]


def test_windows_wait_across_rounds_and_are_never_dropped() -> None:
    windows = AcceptanceWindows([3])
    done = [w for _ in range(50) for w in windows.push(np.ones(1), np.ones(1))]
    assert len(done) == 48
    assert all(w[0] == 4 for w in done)


def test_virtual_rounds_count_the_rounds_of_every_arm() -> None:
    """Match bits 1 1 0 1 1 1: alone, K = 2 would write (1 1 +0) (1 1 +1), K = 1 (1 +1) (0) (1 +1) then one
    draft more."""
    rounds = VirtualRounds([2, 1])
    ends = np.array([rounds.push(np.full(2, bit)) for bit in (1.0, 1.0, 0.0, 1.0, 1.0, 1.0)])
    assert ends[:, 0].tolist() == [0, 0, 1, 0, 0, 1]
    assert ends[:, 1].tolist() == [0, 1, 1, 0, 1, 0]


def test_overlap_and_ratio_by_hand() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2, 0.0], [0.0, 1.0, 0.0, 0.0]], dtype=torch.float64)
    verified = Verified((0, 1), p)
    q = torch.tensor([[0.25, 0.25, 0.5, 0.0], [0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    assert overlap(verified, Rows(q)) == pytest.approx([0.25 + 0.25 + 0.2, 0.5])
    assert likelihood_ratio(verified, Rows(q)) == pytest.approx([0.5, 0.5])
    points = Rows(tokens=(1, -1))
    assert overlap(verified, points) == pytest.approx([0.3, 0.0])
    assert likelihood_ratio(verified, points) == pytest.approx([0.0, 0.0])
    assert likelihood_ratio(verified, Rows(tokens=(0, 1))) == pytest.approx([1.0, 1.0])


def test_reduced_vocabulary_is_the_same_law() -> None:
    verified = Verified((2, 0), torch.stack([laws(1)((0, 1)), laws(1)((1, 0))]))
    vocab = torch.tensor([2, 0])
    small = torch.tensor([[0.7, 0.3], [0.2, 0.8]], dtype=torch.float64)
    full = torch.zeros(2, V, dtype=torch.float64)
    full[:, vocab] = small
    for measure in (overlap, likelihood_ratio):
        assert measure(verified, Rows(small, vocab=vocab)) == pytest.approx(measure(verified, Rows(full)))


def test_block_divergence_counts_every_drafted_position() -> None:
    """Also those after the rejection; what a drafter could not fill counts nothing."""
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
    q = torch.tensor([[0.25, 0.75], [0.9, 0.1]], dtype=torch.float64)
    assert divergence(Proposal((0, 1), probs=q), p, k=2) == pytest.approx((0.75 + 1.0) / 2)
    assert divergence(Proposal((0, 1)), p, k=4) == pytest.approx((0.5 + 0.1) / 4)
    assert divergence(Proposal(()), p[:1], k=4) == 0
