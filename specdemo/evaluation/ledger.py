"""Stopping-time regret: rounds a run took, minus those that each arm alone takes for the same text.

Estimated, from the run's own text by virtual rounds (:mod:`specdemo.virtual`), or by really running every arm again
(rerun.py). Every result says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specdemo.types import Round

PLAIN = "plain"  # decoding without drafts: a round per token


def estimated(rounds: Sequence[Round]) -> dict[str, Any] | None:
    """Regret against every fixed arm, estimated from one run; None where arms were not evaluated.

    Returns:
        JSON-able, see :func:`ledger`. ``rounds`` of an arm are calibrated (equal to ``uncalibrated`` where the request
        wants none); ``positions``: of the text, that were evaluated: fewer than ``tokens`` while a run goes on.
    """
    names = rounds[0].start.evaluated if rounds and rounds[0].start else ()
    seen = [r.evaluated for r in rounds if r.evaluated]
    positions = sum(e.positions for e in seen)
    if not names or not positions:
        return None
    tokens, used = sum(len(r.tokens) for r in rounds), len(rounds)
    if positions < tokens:  # the newest rounds wait to be evaluated: compare what is known
        used = _rounds_until(rounds, positions)
    arms = {
        name: {
            "rounds": sum(e.calibrated[i] for e in seen),
            "uncalibrated": sum(e.rounds[i] for e in seen),
            "acceptance": sum(e.acceptance[i] * e.positions for e in seen) / positions,
        }
        for i, name in enumerate(names)
    }
    return {**ledger("estimated", used, positions, arms), "tokens": tokens}


def ledger(kind: str, used: float, tokens: int, arms: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Rounds of a run beside those of every arm alone, for the same number of tokens.

    Args:
        kind: "estimated" or "rerun". ``used``: rounds of the run. ``tokens``: that it wrote in them.
        arms: ``rounds`` of each arm for as many tokens, and whatever else is known about it.

    Returns:
        ``kind``, ``rounds``, ``positions``; ``arms``: the same with ``regret``, the run's rounds minus the arm's, and
        plain decoding among them; ``best``: the arm of fewest rounds, and ``regret`` against it.
    """
    rows = {**arms, PLAIN: {"rounds": float(tokens)}}
    best = min(rows, key=lambda name: rows[name]["rounds"])
    return {
        "kind": kind,
        "rounds": used,
        "positions": tokens,
        "best": best,
        "regret": used - rows[best]["rounds"],
        "arms": {name: {**row, "regret": used - row["rounds"]} for name, row in rows.items()},
    }


def text_table(result: Mapping[str, Any]) -> str:
    """A ledger as lines of text, the fewest rounds first."""
    head = f"{result['kind']}: {result['rounds']} rounds for {result['positions']} tokens"
    arms = sorted(result["arms"].items(), key=lambda pair: pair[1]["rounds"])
    width = max(len(name) for name, _ in arms)
    rows = [f"  {name:<{width}}{row['rounds']:9.1f} rounds{row['regret']:+9.1f}" for name, row in arms]
    return "\n".join([head, *rows])


def _rounds_until(rounds: Sequence[Round], positions: int) -> int:
    """Rounds that wrote the first so many tokens (evaluations end where rounds do)."""
    written, used = 0, 0
    for r in rounds:
        if written >= positions:
            break
        written, used = written + len(r.tokens), used + 1
    return used
