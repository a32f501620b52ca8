"""Small things that tests of selectors share."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdemo.selectors import make_selector
from specdemo.types import RoundFeedback, Selector


def make(name: str, arms: int = 3, k: int = 4, seed: int = 0, **options: Any) -> Any:
    return make_selector(name, [f"a{i}" for i in range(arms)], [k] * arms, np.random.default_rng(seed), options)


def seen(*positions: tuple[float, ...] | np.ndarray) -> dict[str, np.ndarray]:
    """Feedback about committed positions, greedy: acceptance and ratio are the same."""
    return {"acceptance": np.array(positions), "ratio": np.array(positions)}


def pull(selector: Selector, arm: int, accepted: int, divergence: float = 0.5, k: int = 4) -> None:
    selector.update(RoundFeedback(arm, k, accepted, divergence=divergence))
