"""Lossless verification: p and q in, verdict out. Chain or tree, greedy or sampled: one pure function.

Vocabulary: *accepted* tokens are drafts that are kept; the *corrected* token replaces the first rejected draft; the
*bonus* token follows when every draft of the path was accepted.
"""

from __future__ import annotations

from torch import Tensor

from specdemo.types import Proposal, Rng, Verdict


def verify(proposal: Proposal, p: Tensor, rng: Rng) -> Verdict:
    """Decide which drafts to keep, such that the committed text follows the target's law exactly.

    From the committed text down: the children of the last accepted node are tried in order. Child y, drawn from q, is
    accepted with probability min(1, p(y) / q(y)); on rejection p becomes norm(max(0, p - q)), the law that makes up for
    what q took (Leviathan et al. 2211.17192 §2.3; several children: SpecInfer 2305.09781 §4.2). After the last
    rejection, or below a leaf, the target's own token is drawn from what is left of p. With point-mass drafts q(y) = 1:
    accept with probability p(y), else p without y. At temperature 0 p is one-hot and this is greedy decoding.

    Args:
        proposal: n drafted tokens and the laws they were drawn from.
        p: [n + 1, V] target laws after sampling transforms; row 0 follows the committed text, row i + 1 draft token i.
        rng: decides acceptance and draws the target's own token.
    """
    children: dict[int, list[int]] = {}
    for i in range(len(proposal.tokens)):
        children.setdefault(proposal.parent(i), []).append(i)
    node, path = -1, list[int]()
    while True:
        law = p[node + 1]
        for i in children.get(node, ()):
            q = draft_law(proposal, i, law)
            if rng.flip(acceptance(law, q, proposal.tokens[i])):
                node = i
                path.append(i)
                break
            law = residual(law, q)
        else:
            return Verdict(tuple(path), rng.draw(law))


def draft_law(proposal: Proposal, i: int, like: Tensor) -> Tensor:
    """[V] the law draft token i was drawn from, over the target vocabulary (shape, dtype and device of ``like``)."""
    q = like.new_zeros(like.shape)
    if proposal.probs is None:
        q[proposal.tokens[i]] = 1
    elif proposal.vocab is None:
        q.copy_(proposal.probs[i])
    else:
        q[proposal.vocab] = proposal.probs[i].to(q.dtype)
    return q


def acceptance(p: Tensor, q: Tensor, token: int) -> float:
    """min(1, p(y) / q(y)); a token that q says it cannot draw (rounding) is accepted if p allows it at all."""
    wanted, offered = float(p[token]), float(q[token])
    return min(1.0, wanted / offered) if offered > 0 else float(wanted > 0)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)). Where p = q nothing is left, but then only rounding can have rejected: p itself is right."""
    left = (p - q).clamp_min(0)
    total = left.sum()
    return left / total if float(total) > 0 else p
