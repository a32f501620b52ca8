"""A router: one drafter per answer, from the prompt alone, by a classifier trained beforehand (training/router.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specdemo.models import shipped
from specdemo.selectors.base import BaseSelector
from specdemo.types import Snapshot, SpecdemoError

NGRAM, BUCKETS = 2, 4096


@dataclass(frozen=True, slots=True)
class RouterModel:
    """Softmax regression on hashed n-grams: ``arms``, and ``weights`` [buckets + 1, arms], the last row the bias."""

    arms: tuple[str, ...]
    weights: NDArray[np.float32]


class Router(BaseSelector):
    """Reads the prompt, not the text: a classifier trained beforehand names the drafter of the whole answer.

    The baseline that is perfect on the prompts it was trained for and breaks on others (HedgeSpec's Table 4).

    Args:
        model: file that ``specdemo train router`` wrote; empty: the one that comes with specdemo, for a pool that has
            all the arms it names.

    In the snapshot ``estimate`` is the classifier's probability of each arm.
    """

    def __init__(self, arms: Sequence[str], lengths: Sequence[int], rng: np.random.Generator, model: str = "") -> None:
        super().__init__(arms, lengths, rng)
        model = model or shipped_model(self.arms)
        if not model:
            raise SpecdemoError(
                "The router has no model for this pool. Train one with specdemo train router and give its file: "
                "model=FILE."
            )
        self.model = read_router(model)
        if self.arms and not set(self.arms) & set(self.model.arms):
            raise SpecdemoError(
                f"The router {model} was trained for {', '.join(self.model.arms)}; the pool has none of these arms."
            )
        self.probabilities: NDArray[np.float64] | None = None

    @classmethod
    def offered(cls, arms: Sequence[str]) -> bool:
        """If a model for these arms comes with specdemo."""
        return bool(shipped_model(arms))

    def choose(self) -> int:
        """The likeliest arm of those the pool has."""
        if self.probabilities is None:
            named = dict(zip(self.model.arms, probabilities(self.model, [self.prompt])[0], strict=True))
            self.probabilities = np.array([named.get(arm, 0.0) for arm in self.arms])
            self.chosen = int(self.probabilities.argmax())
        return self.chosen

    def snapshot(self) -> Snapshot:
        """The choice and its reasons."""
        shown = super().snapshot()
        why = shown.estimate if self.probabilities is None else tuple(self.probabilities.tolist())
        return Snapshot("choice", shown.value, why, shown.loss)


def features(prompts: Sequence[Sequence[int]], buckets: int = BUCKETS, ngram: int = NGRAM) -> NDArray[np.float32]:
    """[prompts, buckets + 1] counts of hashed token n-grams (1 .. ngram), square roots, normalised; then a constant."""
    x = np.zeros((len(prompts), buckets + 1), dtype=np.float32)
    for row, prompt in zip(x, prompts, strict=True):
        tokens = np.array(prompt, dtype=np.uint64)
        for n in range(1, min(ngram, len(tokens)) + 1):
            key = np.full(len(tokens) - n + 1, n, dtype=np.uint64)
            for i in range(n):  # Fibonacci hashing, token after token; overflow is wanted
                key = (key ^ tokens[i : i + len(key)]) * np.uint64(0x9E3779B97F4A7C15)
                key ^= key >> np.uint64(29)
            np.add.at(row, (key % np.uint64(buckets)).astype(int), 1)
        row[:] = np.sqrt(row) / max(1.0, float(np.sqrt(row.sum())))
    x[:, -1] = 1
    return x


def probabilities(model: RouterModel, prompts: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """[prompts, arms] probability that the arm is the best."""
    logits = (features(prompts, len(model.weights) - 1) @ model.weights).astype(np.float64)
    p: NDArray[np.float64] = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return p


def shipped_model(arms: Sequence[str]) -> str:
    """The file that comes with specdemo, if there is one and all the arms it names are among these; else empty."""
    path = shipped("assets") / "router.npz"
    return str(path) if path.exists() and set(read_router(str(path)).arms) <= set(arms) else ""


@lru_cache(maxsize=8)
def read_router(path: str) -> RouterModel:
    """Read a file of :func:`write_router`.

    Raises:
        SpecdemoError: there is no such file, or it holds something else.
    """
    try:
        with np.load(Path(path), allow_pickle=False) as file:
            return RouterModel(tuple(file["arms"].tolist()), file["weights"])
    except (OSError, ValueError, KeyError) as error:
        raise SpecdemoError(
            f"The router's model {path} cannot be read ({error}). Train one with specdemo train router."
        ) from error


def write_router(model: RouterModel, path: str | Path) -> None:
    """Write a model as an .npz file of exactly this name."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("wb") as file:
        np.savez_compressed(file, arms=np.array(model.arms), weights=model.weights)
