"""Transforms against ``transformers.generate``'s own processors; dice against frequencies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specdemo.sampling import CountPenalty, Dice, Warp
from specdemo.types import Sampling, SpecdemoError
from tests import tiny

CONTEXT = [5, 9, 7, 9, 3]


def logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 5},
        {"temperature": 0.9, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2},
        {"temperature": 0.8, "top_k": 9, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.4},
    ],
    ids=str,
)
def test_same_law_as_transformers_generate(options: dict[str, float]) -> None:
    model = tiny.llama()
    config = model.generation_config
    config.update(do_sample=True, **({"top_k": 0, "top_p": 1.0} | options))
    model._prepare_special_tokens(config)
    processors = model._get_logits_processor(config, input_ids_seq_length=len(CONTEXT), device="cpu")
    x = logits()
    wanted = torch.softmax(processors(torch.tensor([CONTEXT]), x.clone()), -1)
    got = Warp(Sampling(**options), 2)(x, [CONTEXT])
    assert torch.allclose(got, wanted, atol=1e-12)


def test_count_penalties_by_hand() -> None:
    """Generated tokens are 7, 9, 3 (the prompt's 5 and 9 do not count)."""
    out = CountPenalty(2, frequency=0.5, presence=0.25)(torch.tensor([[5, 9, 7, 9, 7]]), torch.zeros(1, 10))
    wanted = torch.zeros(10)
    wanted[7], wanted[9] = -(2 * 0.5 + 0.25), -(0.5 + 0.25)
    assert torch.equal(out[0], wanted)


def test_rows_have_their_own_contexts() -> None:
    x = logits(2)
    x[1] = x[0]
    both = Warp(Sampling(1.0, presence_penalty=2.0), 0)(x, [[5], [6]])
    assert torch.equal(both[0], Warp(Sampling(1.0, presence_penalty=2.0), 0)(x[:1], [[5]])[0])
    assert not torch.equal(both[0], both[1])


def test_greedy_is_the_limit_of_low_temperature() -> None:
    x = logits(8)
    assert torch.allclose(Warp(Sampling(1e-6), 0)(x, []), Warp(Sampling(0.0), 0)(x, []), atol=1e-12)


def test_no_temperature_is_too_low() -> None:
    x = logits(4).float()
    assert torch.equal(Warp(Sampling(1e-40), 0)(x, []), Warp(Sampling(0.0), 0)(x, []))


def test_half_precision_is_widened_and_overflow_is_said() -> None:
    assert Warp(Sampling(1.0), 0)(logits().bfloat16(), []).dtype == torch.float32
    for bad in (float("nan"), float("inf")):
        x = logits()
        x[0, 3] = bad
        with pytest.raises(SpecdemoError, match="float32"):
            Warp(Sampling(1.0), 0)(x, [])


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}, {"min_p": 2}, {"repetition_penalty": 0},
     {"temperature": float("nan")}],
    ids=str,
)  # fmt: skip
def test_silly_numbers_are_refused_by_name(bad: dict[str, float]) -> None:
    with pytest.raises(SpecdemoError, match=next(iter(bad))):
        Sampling(**bad)


def test_dice_follow_their_weights() -> None:
    weights, dice = torch.tensor([0.0, 1.0, 3.0, 0.0, 4.0, 0.0]), Dice(3)
    count = np.bincount([dice.draw(weights) for _ in range(8000)], minlength=6) / 8000
    assert count[[0, 3, 5]].sum() == 0
    assert np.abs(count - weights.numpy() / 8).max() < 0.02
    assert abs(np.mean([dice.flip(0.3) for _ in range(8000)]) - 0.3) < 0.02
    assert not any(dice.flip(0.0) for _ in range(100))
    assert all(dice.flip(1.0) for _ in range(100))


def test_dice_never_draw_beyond_the_last_weight() -> None:
    dice = Dice(0)
    dice._uniform = lambda: 1 - 2**-53
    assert dice.draw(torch.tensor([0.1] * 10 + [0.0] * 3)) == 9


def test_dice_are_seeded() -> None:
    def throw(seed: int) -> list[int]:
        dice = Dice(seed)
        return [dice.draw(torch.ones(50)) for _ in range(20)]

    assert throw(1) == throw(1) != throw(2)
