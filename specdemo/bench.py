"""How fast the target is: the cost of scoring n rows at once, and plain decoding against ``transformers.generate``.

Orders are interleaved, warm-up stays outside, ratios are paired: on a busy machine only ratios and minima mean much.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from specdemo.costs import costs_table, scorer, selectors_table, timed
from specdemo.target import HFTarget, fixed_rows
from specdemo.types import Message, Proposal, Request

PROMPTS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Translate into French: The meeting starts at nine tomorrow.",
    "A train travels 120 km in 90 minutes. What is its average speed?",
    "Summarise the story of Little Red Riding Hood.",
    "List five things to pack for a day in the mountains.",
)


def run_bench(
    target: HFTarget, ns: Sequence[int] = tuple(range(1, 17)), repeats: int = 20, tokens: int = 64
) -> dict[str, Any]:
    """Both measurements, JSON-able: ``target``, ``dtype``, ``device``, ``threads``, ``compiled``, ``compile_note``,
    ``compile_ms``, ``verify_curve`` (see :func:`verify_curve`) and ``plain`` (see :func:`plain_speed`)."""
    waited = target.warm_up(fixed_rows(1), 64)
    return {
        "target": target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "threads": torch.get_num_threads(),
        "compiled": target.compiled is not None and not target.compile_note,
        "compile_note": target.compile_note,
        "compile_ms": waited,
        "verify_curve": verify_curve(target, ns, repeats),
        "plain": plain_speed(target, tokens=tokens),
    }


def verify_curve(
    target: HFTarget, ns: Sequence[int] = tuple(range(1, 17)), repeats: int = 20, context: int = 128
) -> list[dict[str, float]]:
    """Time of one scoring forward of exactly n rows after ``context`` tokens.

    Returns:
        one record per n: ``n``, ``median_ms``, ``min_ms``, and ``v``: median over rounds of T(n) / T(first n of ns),
        both timed in the same round.
    """
    scorers = {n: scorer(target, n, context) for n in ns}
    for score in scorers.values():
        score()
    rounds = [{n: timed(score) for n, score in scorers.items()} for _ in range(repeats)]
    return [
        {
            "n": n,
            "median_ms": statistics.median(r[n] for r in rounds),
            "min_ms": min(r[n] for r in rounds),
            "v": statistics.median(r[n] / r[ns[0]] for r in rounds),
        }
        for n in ns
    ]


def plain_speed(
    target: HFTarget, prompts: Sequence[str] = PROMPTS, tokens: int = 64, rows: int | None = None
) -> dict[str, Any]:
    """Plain greedy decoding through slots against ``transformers.generate`` on the same weights.

    Both are timed with the prompt's reading and write exactly ``tokens`` tokens (end tokens ignored).

    Args:
        rows: rows of every forward; None is the smallest fixed shape, as in a run.

    Returns:
        ``tokens_per_second`` and ``generate_tokens_per_second`` (medians over prompts), ``ratio`` (median of paired
        ratios, above 1: ours is faster) with ``interval`` (95 %, bootstrap), ``identical`` (prompts with equal text),
        ``prompts``, ``tokens``, ``rows``.
    """
    rows = rows or fixed_rows(1)
    pairs, identical = [], 0
    encoded = [_encode(target, prompt) for prompt in prompts]
    _pair(target, encoded[0], 4, rows, swap=False)
    for i, prompt in enumerate(encoded):
        ours, theirs, same = _pair(target, prompt, tokens, rows, swap=i % 2 == 1)
        pairs.append((ours, theirs))
        identical += same
    ratios = [theirs / ours for ours, theirs in pairs]
    return {
        "tokens_per_second": statistics.median(1e3 * tokens / ours for ours, _ in pairs),
        "generate_tokens_per_second": statistics.median(1e3 * tokens / theirs for _, theirs in pairs),
        "ratio": statistics.median(ratios),
        "interval": bootstrap(ratios),
        "identical": identical,
        "prompts": len(prompts),
        "tokens": tokens,
        "rows": rows,
    }


def bootstrap(values: Sequence[float], draws: int = 2000, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the median of ``values``, resampled with a fixed seed (Efron 1979)."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    tail = (1 - level) / 2
    return medians[int(tail * draws)], medians[min(draws - 1, int((1 - tail) * draws))]


def table(result: dict[str, Any]) -> str:
    """The result of :func:`run_bench` as text."""
    plain, how, costs = result["plain"], "compiled" if result["compiled"] else "eager", result.get("drafting")
    low, high = plain["interval"]
    lines = [
        f"{result['target']}: {result['dtype']} on {result['device']}, {result['threads']} threads, {how}",
        *([result["compile_note"]] if result["compile_note"] else []),
        f"waited for compiled code: {result['compile_ms'] / 1e3:.1f} s",
        "",
        " rows   median ms   min ms   v(n)",
        *(f"{r['n']:5}{r['median_ms']:12.1f}{r['min_ms']:9.1f}{r['v']:7.2f}" for r in result["verify_curve"]),
        "",
        f"plain decoding ({plain['rows']} rows): {plain['tokens_per_second']:.1f} tokens/s; transformers.generate: "
        f"{plain['generate_tokens_per_second']:.1f} tokens/s",
        f"paired ratio {plain['ratio']:.2f} (95 % interval {low:.2f} to {high:.2f}, {plain['prompts']} prompts of "
        f"{plain['tokens']} tokens); same text on {plain['identical']} of {plain['prompts']}",
        *(costs_table(costs) if costs else []),
        *(selectors_table(result["selectors"]) if "selectors" in result else []),
    ]
    return "\n".join(lines)


def _encode(target: HFTarget, prompt: str) -> list[int]:
    if target.tokenizer.hf.chat_template:
        return target.tokenizer.encode(Request(messages=(Message("user", prompt),)))
    return target.tokenizer.encode(Request(prompt=prompt))


def _pair(target: HFTarget, prompt: list[int], tokens: int, rows: int, swap: bool) -> tuple[float, float, bool]:
    """Milliseconds of both decoders, one right after the other, and whether they wrote the same."""
    texts: dict[str, list[int]] = {}
    mine = lambda: texts.update(ours=_decode(target, prompt, tokens, rows))  # noqa: E731
    other = lambda: texts.update(theirs=_generate(target, prompt, tokens))  # noqa: E731
    if swap:
        theirs, ours = timed(other), timed(mine)
    else:
        ours, theirs = timed(mine), timed(other)
    return ours, theirs, texts["ours"] == texts["theirs"]


def _decode(target: HFTarget, prompt: list[int], tokens: int, rows: int) -> list[int]:
    session = target.session(len(prompt) + tokens, rows)
    session.prefill(prompt)
    written: list[int] = []
    for _ in range(tokens):
        written.append(int(session.score(Proposal(())).argmax()))
        session.commit((), written[-1])
    return written


@torch.no_grad()
def _generate(target: HFTarget, prompt: list[int], tokens: int) -> list[int]:
    ids = torch.tensor([prompt], device=target.device)
    with _endless(target):
        output = target.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
    written: list[int] = output[0, len(prompt) :].tolist()
    return written


@contextmanager
def _endless(target: HFTarget) -> Iterator[None]:
    """The model as transformers would run it: its own attention, and no end before ``tokens``. Not for threads."""
    settings = target.model.generation_config
    ends, settings.eos_token_id = settings.eos_token_id, None
    try:
        with target.untouched():
            yield
    finally:
        settings.eos_token_id = ends
