"""Stopping-time regret: rounds a run took, minus those that each arm alone takes for the same text.

Estimated, from the run's own text by virtual rounds (estimators.py), or by really running every arm again
(rerun.py). Every result says which of the two it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specdemo.calibration import Calibration, Floats
from specdemo.estimators import VirtualRounds
from specdemo.types import Round, Start

PLAIN = "plain"  # decoding without drafts: a round per token


def estimated(rounds: Sequence[Round], others: Iterable[Sequence[Round]] = ()) -> dict[str, Any] | None:
    """Regret against every fixed arm, estimated from one run; None where arms were not evaluated.

    Args:
        others: runs on the same arms, with the same sampling, that calibrate, too: one answer says little about depths.

    Returns:
        JSON-able, see :func:`ledger`. ``rounds`` of an arm are calibrated (equal to ``uncalibrated`` where the request
        wants none), ``acceptance`` is the mean over positions; ``positions``: of the text, that were evaluated, fewer
        than ``tokens`` while a run goes on.
    """
    start = rounds[0].start if rounds else None
    acceptance, ratio = matrices(rounds)
    if start is None or not len(ratio):
        return None
    plain = begun(start.lengths, ratio, np.ones((len(start.lengths), max(start.lengths))))
    calibrated = begun(start.lengths, ratio, factors(start, [rounds, *others]))
    arms = {
        name: {"rounds": float(calibrated[i]), "uncalibrated": float(plain[i]), "acceptance": float(mean)}
        for i, (name, mean) in enumerate(zip(start.evaluated, acceptance.mean(0), strict=True))
    }
    # the newest rounds may wait to be evaluated: what is known is compared with the rounds that wrote it
    used = _rounds_until(rounds, len(ratio))
    return {**ledger("estimated", used, len(ratio), arms), "tokens": sum(len(r.tokens) for r in rounds)}


def matrices(rounds: Sequence[Round]) -> tuple[Floats, Floats]:
    """a and r [positions, arms] of all positions that were evaluated, in order."""
    seen = [r.evaluated for r in rounds if r.evaluated]
    acceptance = [row for e in seen for row in e.acceptance]
    return np.array(acceptance), np.array([row for e in seen for row in e.ratio])


def begun(lengths: Sequence[int], ratio: Floats, factors: Floats) -> Floats:
    """[arms] expected number of rounds that every arm alone begins along a text: at the first position, and wherever
    another one has ended before. The last one may end beyond the text, as a real one is cut short.

    Args:
        ratio: [positions, arms]. ``factors``: [arms, depth], see :class:`specdemo.calibration.Calibration`.
    """
    total: Floats = 1.0 + VirtualRounds(lengths).push(ratio[:-1], factors).sum(0)
    return total


def factors(start: Start, runs: Iterable[Sequence[Round]]) -> Floats:
    """[arms, depth] what runs say about how far the arms' drafts fall behind their estimates."""
    calibration = Calibration(start.lengths, start.families)
    for rounds in runs:
        acceptance, position = matrices(rounds)[0], 0
        for r in rounds:
            if r.realised and position + len(r.realised) <= len(acceptance):
                calibration.drafted(r.arm, position, np.array(r.realised))
            position += len(r.tokens)
        calibration.judged(0, acceptance)
    return calibration.factors()


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
