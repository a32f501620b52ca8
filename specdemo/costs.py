"""What drafting and choosing cost: a drafted token of every arm, what a full-information selector asks of all of them,
and every selector's own time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F

from specdemo.drafters.eagle import Eagle
from specdemo.sampling import Dice, Warp
from specdemo.selectors import SELECTORS, make_selector
from specdemo.target import HFTarget, fixed_rows
from specdemo.types import Arm, DraftContext, Drafter, Pool, Proposal, RoundFeedback, Sampling, Verified


@torch.no_grad()
def drafting_costs(pool: Pool, k: int = 5, block: int = 4, context: int = 128, repeats: int = 20) -> dict[str, Any]:
    """Median times after ``context`` tokens, beside a target forward that is timed in the same rounds.

    Returns:
        ``forward_ms``: target forward of a block. ``draft_ms``: by arm, one drafted token (a tree: one level).
        ``team_ms``: all arms together read ``block`` committed tokens and say what they would have drafted at each, as
        a full-information selector wants it; ``heads_ms``: the EAGLE heads alone, ``heads`` of them.
    """
    target = cast("HFTarget", pool.target)
    text = _Text(target, context + block * (repeats + 1))
    score = scorer(target, fixed_rows(k + 1), context)
    start = DraftContext((), Warp(Sampling(), context), len(text.tokens) + 64)
    drafters = {arm.name: arm.start(start) for arm in pool.arms}
    for drafter in drafters.values():
        drafter.catch_up(text.part(0, context, judged=False))
    rounds = []
    for i in range(repeats + 1):
        new = text.part(context + i * block, context + (i + 1) * block, judged=True)
        forward = timed(score)
        draft = {arm.name: _draft_ms(arm, drafters[arm.name], k) for arm in pool.arms}
        rounds.append((forward, draft, {name: timed(partial(d.catch_up, new)) for name, d in drafters.items()}))
    kept = rounds[1:]  # the first warms up
    heads = [name for name, drafter in drafters.items() if isinstance(drafter, Eagle)]
    return {
        "forward_ms": statistics.median(forward for forward, _, _ in kept),
        "draft_ms": {name: statistics.median(draft[name] for _, draft, _ in kept) for name in drafters},
        "team_ms": statistics.median(sum(spent.values()) for _, _, spent in kept),
        "heads_ms": statistics.median(sum(spent[name] for name in heads) for _, _, spent in kept),
        "heads": len(heads),
        "block": block,
    }


def costs_table(costs: dict[str, Any]) -> list[str]:
    """The result of :func:`drafting_costs` as lines of text."""
    forward, block = costs["forward_ms"], f"for {costs['block']} committed tokens"

    def line(name: str, ms: float, what: str) -> str:
        return f"{name:>16}{ms:9.2f}{ms / forward:10.3f}  {what}"

    return [
        "",
        f"drafting: ms, and share of a target forward ({forward:.1f} ms)",
        *(line(name, ms, "per drafted token") for name, ms in costs["draft_ms"].items()),
        line("EAGLE heads", costs["heads_ms"], f"{block}, {costs['heads']} of them"),
        line("everybody", costs["team_ms"], f"{block}, {len(costs['draft_ms'])} arms"),
    ]


def selector_costs(arms: int = 21, k: int = 5, block: int = 3, rounds: int = 200) -> dict[str, dict[str, float]]:
    """Microseconds that every selector takes: the fastest tenth of its rounds, because other work disturbs the rest.

    Returns:
        by selector (but those that need options), ``update``: learning from a round of ``block`` tokens, ``choose``:
        the next choice.
    """
    rng = np.random.default_rng(0)
    names, found = [f"arm {i}" for i in range(arms)], {}
    clock = np.linspace(10.0, 12.0, arms * (k + 1)).reshape(arms, k + 1)
    for name in (name for name, kind in SELECTORS.items() if kind.offered(names)):
        selector = make_selector(name, names, [k] * arms, np.random.default_rng(0), {})
        spent = []
        for _ in range(rounds):
            seen = rng.random((block, arms)) if selector.information == "full" else None
            choice: list[int] = []
            choosing = timed(lambda s=selector, c=choice: c.append(s.choose()))  # type: ignore[misc]
            feedback = RoundFeedback(choice[0], k, block - 1, float(rng.random()), seen, seen, round_ms=clock)
            learning = timed(partial(selector.update, feedback)) if selector.information != "none" else 0.0
            spent.append((learning, choosing))
        update, choose = (1e3 * float(np.quantile(times, 0.1)) for times in zip(*spent, strict=True))
        found[name] = {"update": update, "choose": choose}
    return found


def selectors_table(costs: dict[str, dict[str, float]]) -> list[str]:
    """The result of :func:`selector_costs` as lines of text."""
    rows = [f"{name:>16}{cost['update']:10.1f}{cost['choose']:10.1f}" for name, cost in costs.items()]
    return ["", "selectors, 21 arms: us to learn from a round of 3 tokens, us to choose", *rows]


class _Text:
    """Some text, as drafters are given it."""

    def __init__(self, target: HFTarget, length: int) -> None:
        self.target = target
        self.tokens = [(7 + 11 * i) % target.vocab_size for i in range(length)]
        session = target.session(length, 1)
        session.prefill(self.tokens)
        hidden = session.hidden
        self.features = None if hidden is None else torch.cat([torch.zeros_like(hidden[:1]), hidden])

    def part(self, begin: int, end: int, judged: bool) -> Verified:
        """Tokens ``begin`` to ``end``; ``judged``: with the target's law there, a point mass."""
        tokens = torch.tensor(self.tokens[begin:end], device=self.target.device)
        law = F.one_hot(tokens, self.target.vocab_size).float() if judged else None
        features = None if self.features is None else self.features[begin:end]
        return Verified(tuple(self.tokens[begin:end]), law, features)


def _draft_ms(arm: Arm, drafter: Drafter, k: int) -> float:
    depth = min(k, arm.k or k)
    return timed(lambda: drafter.propose(depth, Dice(0))) / depth


def scorer(target: HFTarget, rows: int, context: int) -> Callable[[], object]:
    """A scoring forward of ``rows`` rows after ``context`` tokens, to be called again and again."""
    vocabulary = target.vocab_size
    session = target.session(context + 1, rows)
    session.prefill([(7 + 11 * i) % vocabulary for i in range(context)])
    proposal = Proposal(tuple((3 + 5 * i) % vocabulary for i in range(rows - 1)))
    return lambda: session.score(proposal).argmax(-1).tolist()


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    begin = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begin)
