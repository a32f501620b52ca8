"""EAGLE-2's dynamic trees (arXiv 2406.16858 §4), for any drafter that can expand several nodes of a level at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdemo.types import Proposal

BEAM = 8  # nodes of a tree's level that are expanded, and children considered of each
DEEPEST = 16  # levels of a tree, and tokens of a chain

Expand = Callable[[int, Tensor, Tensor], Tensor]


def children(nodes: int, logits: Tensor, vocab: Tensor | None = None) -> Tensor:
    """[n, width] target ids of the children that a tree of ``nodes`` tokens considers at each of n positions.

    A tree keeps most of them at its root (the unlikely ones may lose their places to deeper nodes) and fewer below: so
    acceptance estimated from them is an upper bound, and falls behind with depth. Calibration measures by how much.
    """
    columns = logits.topk(min(BEAM, nodes, logits.shape[-1])).indices
    return columns if vocab is None else vocab[columns]


def dynamic_tree(depth: int, nodes: int, first: Tensor, expand: Expand, vocab: Tensor | None = None) -> Proposal:
    """Expand the likeliest nodes of every level, keep the likeliest of all. Certain, so every token is a point mass.

    Args:
        depth: most tokens on a path. ``nodes``: size of the tree.
        first: [1, draft vocabulary] logits after the committed text.
        expand: ``expand(level, tokens, parents)``: [n, draft vocabulary] logits after each of ``tokens`` [n], which are
            nodes of level 0, 1, ...; ``parents`` [n]: rows, in the logits of the call before, that they came from.
        vocab: target ids of the logits' columns, None: the target's own.
    """
    beam = min(BEAM, nodes)
    tokens, parents, scores = list[int](), list[int](), list[float]()  # of all nodes considered, level by level
    logits, expanded, sums = first, [-1], first.new_zeros(1, 1, dtype=torch.float32)  # sums: log of their probability
    for level in range(depth):
        children = torch.log_softmax(logits.float(), -1).topk(min(beam, logits.shape[-1]))
        width = children.values.shape[1]
        score = (sums + children.values).flatten()
        columns = children.indices.flatten()
        ids = columns if vocab is None else vocab[columns]
        before = len(tokens)
        tokens += ids.tolist()
        scores += score.tolist()
        parents += [node for node in expanded for _ in range(width)]
        best = score.topk(min(beam, len(score))).indices
        if len(scores) >= nodes:  # who is not among the likeliest now has no child that ever will be
            best = best[score[best] > sorted(scores)[-nodes]]
        if level == depth - 1 or not len(best):
            break
        expanded, sums = (before + best).tolist(), score[best][:, None]
        logits = expand(level, ids[best], best // width)
    # A child is never likelier than its parent and comes after it, so what is kept is a tree, parents first.
    chosen = sorted(sorted(range(len(tokens)), key=lambda i: -scores[i])[:nodes])
    place = {-1: -1} | {node: i for i, node in enumerate(chosen)}
    return Proposal(tuple(tokens[i] for i in chosen), tuple(place[parents[i]] for i in chosen))
