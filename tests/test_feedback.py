"""What is read from p and q, computed by hand."""

from __future__ import annotations

import pytest
import torch

from specdemo.feedback import divergence, likelihood_ratio, overlap
from specdemo.types import Proposal, Rows, Verified
from tests.fakes import table

V = 4


def laws(seed: int):
    law = table(V, seed)
    return lambda context: torch.softmax(torch.tensor(law(context), dtype=torch.float64), -1)


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
