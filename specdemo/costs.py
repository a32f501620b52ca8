"""What drafting and choosing cost: a drafted token of every arm, what a full-information selector asks of all of them,
and every selector's own time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from specdemo.sampling import Warp
from specdemo.selectors import SELECTORS, make_selector
from specdemo.target import HFTarget, fixed_rows
from specdemo.team import Features, Team
from specdemo.types import Arm, DraftContext, Pool, Proposal, RoundFeedback, Sampling


@torch.no_grad()
def drafting_costs(pool: Pool, k: int = 5, block: int = 4, context: int = 128, repeats: int = 20) -> dict[str, Any]:
    """Median times after ``context`` tokens, and their ratios to a target forward right before.

    Returns:
        ``forward_ms``: target forward of a block. ``draft``: by arm, one drafted token (a tree: one level).
        ``feedback``: by team, all its arms read ``block`` committed tokens and say what they would have drafted at
        each, as a full-information selector wants it. Both hold ``ms`` and ``ratio``; teams also ``arms``.
    """
    target = cast("HFTarget", pool.target)
    text = _Text(target, context, context + block * (repeats + 1))
    teams = {name: text.team(arms) for name, arms in _teams(pool)}
    everybody, lengths = teams["everybody"], [min(k, arm.k or k) for arm in pool.arms]
    for team in teams.values():
        for i in range(len(team.drafters)):
            team.level(i)
    score, rounds = scorer(target, fixed_rows(k + 1), context), []
    for _ in range(repeats + 1):
        law, spent = text.grow(block), dict[str, tuple[float, float]]()
        for name, team in teams.items():
            team.committed(law)
            spent[name] = timed(score), timed(team.judge)  # as in a round, the forward leaves caches to the target
        for i, length in enumerate(lengths):
            spent[f"draft {i}"] = timed(score), everybody.draft_ms(i, length) / length
        rounds.append(spent)

    def median(what: str) -> dict[str, float]:
        kept = [spent[what] for spent in rounds[1:]]  # the first warms up
        ms, ratio = (statistics.median(x) for x in ([ms for _, ms in kept], [ms / forward for forward, ms in kept]))
        return {"ms": ms, "ratio": ratio}

    return {
        "forward_ms": statistics.median(forward for spent in rounds[1:] for forward, _ in spent.values()),
        "draft": {arm.name: median(f"draft {i}") for i, arm in enumerate(pool.arms)},
        "feedback": {name: {**median(name), "arms": len(team.drafters)} for name, team in teams.items()},
        "block": block,
    }


def _teams(pool: Pool, few: int = 8) -> list[tuple[str, tuple[Arm, ...]]]:
    """Arms whose feedback is timed: a few heads of one kind, a few arms, all."""
    heads = tuple(arm for arm in pool.arms if arm.family == "eagle" and not arm.nodes)
    some = [("heads", heads[:few]), ("few", pool.arms[:few])]
    return [*((name, arms) for name, arms in some if 0 < len(arms) < len(pool.arms)), ("everybody", pool.arms)]


def costs_table(costs: dict[str, Any]) -> list[str]:
    """The result of :func:`drafting_costs` as lines of text."""

    def line(name: str, cost: dict[str, float], what: str) -> str:
        return f"{name:>16}{cost['ms']:9.2f}{cost['ratio']:10.3f}  {what}"

    return [
        "",
        f"drafting: ms, and share of a target forward ({costs['forward_ms']:.1f} ms)",
        *(line(name, cost, "per drafted token") for name, cost in costs["draft"].items()),
        *(
            line(name, cost, f"feedback of {cost['arms']} arms on {costs['block']} committed tokens")
            for name, cost in costs["feedback"].items()
        ),
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
    """Some text that grows. It repeats itself: texts do not bring a new word with every token."""

    def __init__(self, target: HFTarget, begin: int, length: int) -> None:
        self.target = target
        self.written = [(7 + 11 * (i % 64)) % target.vocab_size for i in range(length)]
        self.read = self.written[:begin]
        session = target.session(length, 1)
        session.prefill(self.written)
        self._hidden = session.hidden
        self.features = Features(length, None if self._hidden is None else self._hidden[: begin - 1])

    def team(self, arms: Sequence[Arm]) -> Team:
        """Drafters on this text. Every team has its own: what one has read and judged is done for all that share."""
        start = DraftContext((), Warp(Sampling(), len(self.read)), len(self.written) + 64)
        return Team([arm.start(start) for arm in arms], self.read, self.features, True)

    def grow(self, block: int) -> Tensor:
        """Commit some tokens. Returns the target's law there, point masses."""
        begin, end = len(self.read), len(self.read) + block
        self.read += self.written[begin:end]
        self.features.append(self._hidden, range(begin - 1, end - 1))
        tokens = torch.tensor(self.written[begin:end], device=self.target.device)
        return F.one_hot(tokens, self.target.vocab_size).float()


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
