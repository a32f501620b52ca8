"""Replays, summed up: drafter x domain, with intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Row = dict[str, Any]  # of replay.to_dict


def lengths(rows: Sequence[Row]) -> float:
    """Mean acceptance length over all rounds: tokens / rounds."""
    return float(sum(r["tokens"] for r in rows) / max(1, sum(r["rounds"] for r in rows)))


def agreement(rows: Sequence[Row]) -> float:
    """Share of positions at which the first drafted token is the target's."""
    return float(sum(r["agreement"] * r["tokens"] for r in rows) / max(1, sum(r["tokens"] for r in rows)))


def speed(rows: Sequence[Row], verify_ms: float) -> float:
    """Tokens per second if every round costs one target forward and the drafting time that was measured."""
    spent = sum(r["draft_ms"] + r["rounds"] * verify_ms for r in rows)
    return float(1000 * sum(r["tokens"] for r in rows) / max(1e-9, spent))


def by_position(rows: Sequence[Row]) -> list[float]:
    """Entry j - 1: rounds with at least j accepted / rounds that drafted at least j (chains)."""
    pairs = [pair for r in rows for pair in zip(r["accepted"], r["drafted"], strict=True)]
    longest = max((drafted for _, drafted in pairs), default=0)
    return [
        sum(accepted >= j for accepted, _ in pairs) / sum(drafted >= j for _, drafted in pairs)
        for j in range(1, longest + 1)
    ]


def heat_map(rows: Iterable[Row], value: Callable[[Sequence[Row]], float]) -> dict[str, dict[str, float]]:
    """{arm: {domain: value}}; the domain "all" is the mean of the domains, each counting alike."""
    cells: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault(row["arm"], {}).setdefault(row["domain"], []).append(row)
    table = {arm: {domain: value(group) for domain, group in row.items()} for arm, row in cells.items()}
    return {arm: {**row, "all": sum(row.values()) / len(row)} for arm, row in table.items()}


def ratio(
    rows: Sequence[Row], arm: str, other: str, domain: str, value: Callable[[Sequence[Row]], float], draws: int = 2000
) -> tuple[float, float, float]:
    """value(arm) / value(other) on a domain's prompts with its 95 % interval: prompts are resampled, in pairs."""
    mine, theirs = ({r["id"]: r for r in rows if r["arm"] == name and r["domain"] == domain} for name in (arm, other))
    ids = sorted(mine.keys() & theirs.keys())
    rng = random.Random(0)

    def once(chosen: Sequence[str]) -> float:
        return value([mine[i] for i in chosen]) / value([theirs[i] for i in chosen])

    drawn = sorted(once(rng.choices(ids, k=len(ids))) for _ in range(draws))
    return once(ids), drawn[int(0.025 * draws)], drawn[int(0.975 * draws)]


def markdown(table: dict[str, dict[str, float]], digits: int = 2) -> str:
    """A heat map as a Markdown table, the best of each column in bold."""
    domains = list(dict.fromkeys(domain for row in table.values() for domain in row))
    best = {d: max((row[d] for row in table.values() if d in row), default=0.0) for d in domains}

    def cell(row: dict[str, float], domain: str) -> str:
        if domain not in row:
            return ""
        text = f"{row[domain]:.{digits}f}"
        return f"**{text}**" if row[domain] == best[domain] else text

    head = "| drafter | " + " | ".join(domains) + " |\n" + "|---" * (len(domains) + 1) + "|\n"
    return head + "\n".join(
        f"| {arm} | " + " | ".join(cell(row, d) for d in domains) + " |" for arm, row in table.items()
    )
