"""The drafters of a pool as a table: name, what each is good at, and how long its drafts were, domain by domain."""

from __future__ import annotations

from html import escape

from specdemo.ui.backend import Source, Team
from specdemo.ui.palette import colour

OWN = 1.0  # acceptance length of plain decoding: the target's own token alone


def team_html(team: Team) -> str:
    """The table. Everything that comes from a pool file is escaped."""
    if not team.sources:
        return "<p class='sd-team-note'>This pool has no drafters: it decodes plainly.</p>"
    domains = list(dict.fromkeys(d for row in team.strengths.values() for d in row))
    best = {d: max(row.get(d, 0.0) for row in team.strengths.values()) for d in domains}
    head = "".join(f"<th scope='col'>{escape(d)}</th>" for d in domains)
    rows = "".join(_row(i, source, team, domains, best) for i, source in enumerate(team.sources))
    table = (
        f"<table><thead><tr><th scope='col'>drafter</th><th scope='col'>good at</th>{head}</tr></thead>{rows}</table>"
    )
    note = f"<p class='sd-team-note'>{escape(team.note)}</p>" if team.note else ""
    return f"<div class='sd-team'>{table}</div>{note}"


def _row(index: int, source: Source, team: Team, domains: list[str], best: dict[str, float]) -> str:
    light, dark = colour(source, index)
    number = index % 16 + 1
    colours = f"--light{number}:{escape(light)};--dark{number}:{escape(dark)}"
    swatch = f"<span class='sd' style='{colours}'><span class='tk d{number}'>abc</span></span>"
    cells = "".join(_cell(team.strengths.get(source.name, {}).get(d), best[d]) for d in domains)
    name = f"<th scope='row'>{swatch} {escape(source.name)}</th>"
    return f"<tr>{name}<td>{escape(source.about)}</td>{cells}</tr>"


def _cell(value: float | None, best: float) -> str:
    """A darker cell is a longer draft; the best of a column is bold."""
    if value is None:
        return "<td></td>"
    share = max(0.0, min(1.0, (value - OWN) / max(best - OWN, 1e-9)))
    text = f"<b>{value:.2f}</b>" if value == best else f"{value:.2f}"
    return f"<td class='sd-cell' style='--share:{share:.2f}'>{text}</td>"
