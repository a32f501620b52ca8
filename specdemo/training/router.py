"""Trains the model of the selector ``router``: which drafter a prompt wants, from its tokens alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from specdemo.selectors.router import BUCKETS, RouterModel, features, probabilities, write_router
from specdemo.types import SpecdemoError


def train_router(
    prompts: Sequence[Sequence[int]],
    best: Sequence[str],
    path: str | Path | None = None,
    steps: int = 300,
    decay: float = 1e-4,
    buckets: int = BUCKETS,
) -> RouterModel:
    """Softmax regression on hashed token n-grams, by gradient descent with momentum on all prompts at once.

    Minimises the mean of ``-ln p(best arm | prompt)`` plus ``decay / 2 * |weights|^2``. Deterministic.

    Args:
        prompts: token ids of each, as the engine's tokenizer encodes them. ``best``: name of the best arm for each.
        path: where the model is written, an .npz file; None: nowhere.

    Raises:
        SpecdemoError: there is nothing to learn from.
    """
    if not prompts or len(prompts) != len(best):
        raise SpecdemoError(f"A router needs prompts and the best arm of each; got {len(prompts)} and {len(best)}.")
    arms = tuple(dict.fromkeys(best))
    x = features(prompts, buckets)
    wanted = np.eye(len(arms), dtype=np.float32)[[arms.index(name) for name in best]]
    weights, speed = np.zeros((2, buckets + 1, len(arms)), dtype=np.float32)
    for _ in range(steps):
        logits = x @ weights
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        speed = 0.9 * speed - (x.T @ (p - wanted) / len(x) + decay * weights)
        weights = weights + speed  # rows of x have length sqrt 2 at most: a step of 1 cannot overshoot
    model = RouterModel(arms, weights.astype(np.float32))
    if path is not None:
        write_router(model, path)
    return model


def cross_validated(prompts: Sequence[Sequence[int]], best: Sequence[str], folds: int = 5) -> float:
    """Share of prompts whose best arm a router names that was trained without them (every ``folds``-th is left out)."""
    right = 0
    for fold in range(folds):
        kept = [i for i in range(len(best)) if i % folds != fold]
        model = train_router([prompts[i] for i in kept], [best[i] for i in kept])
        left = range(fold, len(best), folds)
        named = probabilities(model, [prompts[i] for i in left]).argmax(1) if left else ()
        right += sum(model.arms[n] == best[i] for n, i in zip(named, left, strict=True))
    return right / len(best)
