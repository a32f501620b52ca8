from __future__ import annotations

from dataclasses import replace

import pytest

from specdemo.check import check, checking, margin
from specdemo.engine import generate
from specdemo.metrics import token_ids
from specdemo.types import Arm, Pool, Request, Round, Sampling
from tests import tiny


@pytest.fixture(scope="module")
def pool() -> Pool:
    from specdemo.drafters import causal_lm, prompt_lookup

    target = tiny.target()
    drafter = tiny.target(tiny.llama(seed=1, dtype=target.dtype))
    return Pool(
        "tiny",
        target,
        (
            Arm("copy", "prompt-lookup", prompt_lookup.load(target)),
            Arm("small", "causal_lm", causal_lm.for_model(target, drafter)),
        ),
    )


def ask(**changes: object) -> Request:
    base = Request(prompt="w5 w6 w7 w5 w6", selector="round-robin", k=3, max_new_tokens=20, ignore_eos=True)
    return replace(base, **changes)  # type: ignore[arg-type]


def with_token(rounds: list[Round], index: int, token: int) -> list[Round]:
    """The same answer with another token at ``index``."""
    changed, before = [], 0
    for r in rounds:
        i = index - before
        tokens = (*r.tokens[:i], token, *r.tokens[i + 1 :]) if 0 <= i < len(r.tokens) else r.tokens
        changed.append(replace(r, tokens=tokens))
        before += len(r.tokens)
    return changed


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.3, frequency_penalty=0.2)])
def test_identical(pool: Pool, sampling: Sampling) -> None:
    asked = ask(sampling=sampling)
    result = check(asked, pool, list(generate(asked, pool)))
    assert result["identical"] is True
    assert result["tokens"] == 20
    assert result["first_difference"] is None
    assert result["plain_tokens_per_second"] > 0
    assert result["rows"] >= 4


@pytest.mark.parametrize("index", [0, 7, 19])
def test_first_difference_with_the_margins_of_both(pool: Pool, index: int) -> None:
    asked = ask()
    rounds = list(generate(asked, pool))
    answer = token_ids(rounds)
    wrong = (answer[index] + 1) % 64
    result = check(asked, pool, with_token(rounds, index, wrong))
    assert result["identical"] is False
    assert result["tokens"] == index
    difference = result["first_difference"]
    assert (difference["index"], difference["token"], difference["plain_token"]) == (index, wrong, answer[index])
    decode = pool.target.tokenizer.decode
    assert (difference["text"], difference["plain_text"]) == (decode([wrong]), decode([answer[index]]))
    assert difference["margin"] == pytest.approx(
        difference["plain_margin"]
    )  # in float64 the shape of a block is nothing
    assert difference["margin"] > 0


def test_margin_is_that_of_transformers(pool: Pool) -> None:
    import torch

    asked = ask()
    rounds = list(generate(asked, pool))
    prompt = pool.target.tokenizer.encode(asked)
    ids = torch.tensor([prompt + token_ids(rounds)])
    with torch.no_grad():
        logits = tiny.llama()(ids).logits[0]  # the same weights, in transformers' own hands
    for index in range(20):
        best = logits[len(prompt) + index - 1].topk(2).values
        assert margin(asked, pool, rounds, index) == pytest.approx(float(best[0] - best[1]), abs=1e-9)


def test_margin_counts_penalties(pool: Pool) -> None:
    asked = ask(sampling=Sampling(repetition_penalty=2.0))
    rounds = list(generate(asked, pool))
    plain = replace(asked, sampling=Sampling())
    assert [margin(asked, pool, rounds, i) for i in range(20)] != pytest.approx(
        [margin(plain, pool, rounds, i) for i in range(20)]
    )


def test_an_answer_that_goes_on_is_a_difference(pool: Pool) -> None:
    asked = ask()
    rounds = list(generate(asked, pool))
    last = rounds[-1]
    path = tuple(range(len(last.tokens)))
    longer = [*rounds[:-1], replace(last, draft=last.tokens, tokens=(*last.tokens, 9), path=path)]
    difference = check(asked, pool, longer)["first_difference"]
    assert difference["index"] == 20
    assert difference["token"] == 9
    assert difference["plain_token"] is None
    assert difference["plain_margin"] is None


def test_a_stopped_answer_is_compared_as_far_as_it_goes(pool: Pool) -> None:
    asked = ask()
    rounds = list(generate(asked, pool))[:2]
    assert rounds[-1].finish is None
    result = check(asked, pool, rounds)
    assert result["identical"] is True
    assert result["tokens"] == len(token_ids(rounds))


def test_sampling_is_not_compared(pool: Pool) -> None:
    asked = ask(sampling=Sampling(temperature=1.0))
    result = check(asked, pool, list(generate(asked, pool)))
    assert result["identical"] is None
    assert "law" in result["why"]


def test_nothing_to_compare(pool: Pool) -> None:
    asked = ask(max_new_tokens=0)
    assert check(asked, pool, list(generate(asked, pool)))["identical"] is True


def test_progress_and_giving_up(pool: Pool) -> None:
    asked = ask()
    steps = checking(asked, pool, list(generate(asked, pool)))
    assert [next(steps) for _ in range(3)] == [1, 2, 3]
    steps.close()
