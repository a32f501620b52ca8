"""What a round says about the drafters: block divergence of the one that drafted, counterfactuals of all of them.

``overlap`` a = sum_v min(p, q) = 1 - TV(p, q) is the probability that a draft from q is accepted; ``likelihood_ratio``
r = min(1, q(x) / p(x)) is the probability that drafting would have led to the token x that was really committed.
p and q are laws after sampling transforms; at temperature 0 both are one-hot and a = r = "it would have matched".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdemo.types import Proposal, Rows, Verified
from specdemo.verify import draft_law, residual

Floats = NDArray[np.float64]


def divergence(proposal: Proposal, p: Tensor, k: int) -> float:
    """Block divergence (MetaSD, arXiv 2604.05417): (1/k) sum over drafted positions of 1 - TV(p, q), also those after
    the rejection; positions for which nothing was drafted count 0.

    Args:
        proposal: n drafted tokens. ``p``: [n + 1, V] target laws, row i + 1 after draft token i.
        k: draft length asked for.
    """
    n = len(proposal.tokens)
    if not n or not k:
        return 0.0
    before = Verified(proposal.tokens, p[[proposal.parent(i) + 1 for i in range(n)]])
    rows = Rows(proposal.probs, None if proposal.probs is not None else proposal.tokens, proposal.vocab)
    return float(overlap(before, rows).sum()) / max(k, n)


def draft_acceptance(proposal: Proposal, p: Tensor, path: Sequence[int]) -> Floats:
    """[n] probability that a draft was accepted at each depth of the path it took, up to where none was.

    One child drawn from q: 1 - TV(p, q). Several: tried in order, each against what the ones before left of p, which
    for point masses adds up to the mass of p on the children.

    Args:
        p: [drafted + 1, V] target laws, row i + 1 after draft token i. ``path``: accepted tokens, root first.
    """
    chances = []
    for node in (-1, *path):
        children = [i for i in range(len(proposal.tokens)) if proposal.parent(i) == node]
        if not children:
            break
        chances.append(_any_accepted(proposal, p[node + 1], children))
    return torch.stack(chances).double().clamp(max=1).cpu().numpy() if chances else np.zeros(0)


def _any_accepted(proposal: Proposal, law: Tensor, children: list[int]) -> Tensor:
    if proposal.probs is None:
        return law[[proposal.tokens[i] for i in children]].sum()
    rejected = law.new_ones(())
    for i in children:
        q = draft_law(proposal, i, law)
        rejected = rejected * (1 - torch.minimum(law, q).sum())
        law = residual(law, q) if len(children) > 1 else law
    return 1 - rejected


def overlap(verified: Verified, rows: Rows) -> Floats:
    """[n] a = sum_v min(p, q) at each position. Point masses: p of the token, 0 where nothing was proposed. Trees: p of
    all children together (HedgeSpec arXiv 2510.20064, Theorem 2). Of several drafters: [drafters, n]."""
    p = verified.probs
    assert p is not None
    if rows.children is not None:
        some = p.expand(*rows.children.shape[:-1], -1).gather(-1, rows.children.clamp_min(0))
        a = (some * (rows.children >= 0)).sum(-1)
    elif rows.tokens is not None:
        tokens = torch.tensor(rows.tokens, device=p.device)
        a = p.gather(1, tokens.clamp_min(0)[:, None])[:, 0] * (tokens >= 0)
    else:
        assert rows.probs is not None
        a = torch.minimum(p if rows.vocab is None else p[:, rows.vocab], rows.probs.to(p.dtype)).sum(-1)
    return a.double().clamp(max=1).cpu().numpy()


def likelihood_ratio(verified: Verified, rows: Rows) -> Floats:
    """[n] r = min(1, q(x) / p(x)) at each committed token x. Trees: 1 if it is among the children. Of several drafters:
    [drafters, n]."""
    p = verified.probs
    assert p is not None
    x = torch.tensor(verified.tokens, device=p.device)[:, None]
    px = p.gather(1, x)[:, 0]
    if rows.children is not None:
        q = (rows.children == x).any(-1)
    elif rows.tokens is not None:  # q(x) = 1 if it is the proposed token
        q = (torch.tensor(rows.tokens, device=p.device)[:, None] == x)[:, 0]
    else:
        assert rows.probs is not None
        found, column = (x >= 0, x) if rows.vocab is None else (rows.vocab == x).max(-1, keepdim=True)
        q = (rows.probs.gather(-1, column.expand(*rows.probs.shape[:-1], 1)) * found)[..., 0]
    return (q.double() / px.double()).clamp(max=1).nan_to_num(0.0).cpu().numpy()
