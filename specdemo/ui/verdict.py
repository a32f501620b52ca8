"""The result of specdemo.check, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specdemo.ui.backend import Check


def in_words(check: Mapping[str, Any] | None) -> Check | None:
    """The result of specdemo.check for people."""
    if check is None:
        return None
    if check["identical"] is None:
        return Check(None, f"Not compared with plain decoding. {check['why']}")
    if check["identical"]:
        return Check(True, f"Identical to plain decoding: all {check['tokens']} tokens are the same.")
    d = check["first_difference"]
    return Check(
        False,
        f"Differs from plain decoding from token {d['index'] + 1} on: {d['text']!r} here, {d['plain_text']!r} there. "
        f"The best logit leads the second by {_margin(d['margin'])} here and by {_margin(d['plain_margin'])} there.",
    )


def _margin(value: float | None) -> str:
    return "nothing (the answer had ended)" if value is None else f"{value:.3g}"
