"""Selectors compared prompt by prompt: medians, and ratios against a baseline with bootstrap intervals."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from typing import Any

from specdemo.bench import bootstrap

Row = dict[str, Any]  # of harness.rows
ALL = "all"
COLUMNS = {  # of the table as text: heading, and how a cell is written
    "selector": ("selector", "{}"),
    "domain": ("domain", "{}"),
    "prompts": ("prompts", "{}"),
    "length": ("tokens/round", "{:.2f}"),
    "speed": ("tokens/s", "{:.1f}"),
    "rounds": ("rounds", "{:.1f}"),
    "switches": ("switches", "{:.1f}"),
    "regret": ("regret", "{:+.1f}"),
    "length_ratio": ("length ratio", "{:.3f}"),
    "speed_ratio": ("speed ratio", "{:.3f}"),
}


def compare(rows: Sequence[Row], baseline: str) -> list[dict[str, Any]]:
    """One record per selector and domain, and per selector over all prompts (domain "all").

    A prompt's seeds count together: ``length`` is tokens / rounds, ``speed`` tokens / second of rounds, ``rounds``,
    ``switches`` and ``regret`` are means over its seeds. Records hold medians over prompts; ``length_ratio`` and
    ``speed_ratio`` are medians of the prompts' own ratios against the baseline's, ``*_low`` and ``*_high`` their 95 %
    bootstrap interval over prompts (None for the baseline, and where no prompt has both).
    """
    domains = [*dict.fromkeys(row["domain"] for row in rows), ALL]
    selectors = list(dict.fromkeys(row["selector"] for row in rows))
    cells = {
        (s, d): _prompts([r for r in rows if r["selector"] == s and d in (r["domain"], ALL)])
        for s in selectors
        for d in domains
    }
    return [
        {
            "selector": s,
            "domain": d,
            "prompts": len(cells[s, d]),
            **_medians(cells[s, d]),
            **_ratios(cells, s, d, baseline),
        }
        for s in selectors
        for d in domains
        if cells[s, d]
    ]


def as_text(records: Sequence[dict[str, Any]]) -> str:
    """Aligned columns."""
    grid = [[heading for heading, _ in COLUMNS.values()]]
    for record in records:
        grid.append([_cell(record, name, form) for name, (_, form) in COLUMNS.items()])
    widths = [max(len(row[i]) for row in grid) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in grid)


def as_csv(records: Sequence[dict[str, Any]]) -> str:
    """All numbers, unrounded."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(records[0]) if records else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return file.getvalue()


def _prompts(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    """{prompt: its numbers, all seeds together}."""
    by_prompt: dict[str, list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(f"{row['domain']}/{row['prompt']}", []).append(row)
    return {prompt: _numbers(group) for prompt, group in by_prompt.items()}


def _numbers(group: Sequence[Row]) -> dict[str, float | None]:
    tokens = sum(row["tokens"] for row in group)
    return {
        "length": tokens / max(1, sum(row["rounds"] for row in group)),
        "speed": 1000 * tokens / max(1e-9, sum(row["ms"] for row in group)),
        **{name: statistics.fmean(row[name] for row in group) for name in ("rounds", "switches")},
        "regret": None if any(row["regret"] is None for row in group) else statistics.fmean(r["regret"] for r in group),
    }


def _medians(prompts: dict[str, dict[str, float | None]]) -> dict[str, float | None]:
    def median(name: str) -> float | None:
        known = [value for numbers in prompts.values() if (value := numbers[name]) is not None]
        return statistics.median(known) if known else None

    return {name: median(name) for name in ("length", "speed", "rounds", "switches", "regret")}


def _ratios(cells: dict[Any, Any], selector: str, domain: str, baseline: str) -> dict[str, float | None]:
    mine, theirs = cells[selector, domain], cells.get((baseline, domain), {})
    both = [p for p in mine if p in theirs and selector != baseline]
    found: dict[str, float | None] = {}
    for name in ("length", "speed"):
        ratios = [mine[p][name] / theirs[p][name] for p in both if theirs[p][name]]
        low, high = bootstrap(ratios) if ratios else (None, None)
        found |= {f"{name}_ratio": statistics.median(ratios) if ratios else None}
        found |= {f"{name}_low": low, f"{name}_high": high}
    return found


def _cell(record: dict[str, Any], name: str, form: str) -> str:
    value = record[name]
    if value is None:
        return "-"
    text = form.format(value)
    stem = name.removesuffix("_ratio")
    return f"{text} ({record[stem + '_low']:.3f}-{record[stem + '_high']:.3f})" if name.endswith("_ratio") else text
