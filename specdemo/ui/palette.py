"""Colours of the drafters: Okabe and Ito's eight, which people with any colour vision tell apart, each moved in
lightness where a white or a black page would swallow it. The target's own tokens have none. The second cue, a style of
underline per drafter, is in static/style.css.

Source: M. Okabe, K. Ito, Color Universal Design, https://jfly.uni-koeln.de/color/
"""

from __future__ import annotations

import re

from specdemo.ui.backend import Source

PALETTE: tuple[tuple[str, str], ...] = (
    ("#0072B2", "#56B4E9"),
    ("#B87A00", "#E69F00"),
    ("#00805E", "#2BC79A"),
    ("#B0518C", "#E08BBB"),
    ("#C24F00", "#FF8A47"),
    ("#2A86BD", "#8CCBF0"),
    ("#8A7D00", "#F0E442"),
    ("#6B6B6B", "#B5B5B5"),
)
_HEX = re.compile(r"#[0-9a-fA-F]{6}")


def colour(source: Source, index: int) -> tuple[str, str]:
    """A light-page and a dark-page colour: the source's own if it has any, else the palette's for this index."""
    own = all(_HEX.fullmatch(c) for c in source.colour)
    return source.colour if own else PALETTE[index % len(PALETTE)]
