"""Drafter families: one file each; this registry feeds pool files, the CLI, the contract tests and the docs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from specdemo.drafters import causal_lm, eagle, hydra, medusa, prompt_lookup, suffix
from specdemo.types import DrafterStart


@dataclass(frozen=True, slots=True)
class Family:
    """A way of drafting. ``load(target, **options)`` loads what all runs share and returns what starts one of them."""

    name: str
    load: Callable[..., DrafterStart]

    @property
    def summary(self) -> str:
        """One line for people."""
        return (inspect.getdoc(self.load) or "").partition("\n")[0]

    @property
    def options(self) -> dict[str, object]:
        """Options with their defaults; None for those that must be given."""
        options = list(inspect.signature(self.load).parameters.values())[1:]
        return {p.name: None if p.default is p.empty else p.default for p in options}


DRAFTERS: dict[str, Family] = {
    family.name: family
    for family in (
        Family("prompt-lookup", prompt_lookup.load),
        Family("suffix", suffix.load),
        Family("causal_lm", causal_lm.load),
        Family("eagle", eagle.load),
        Family("hydra", hydra.load),
        Family("medusa", medusa.load),
    )
}
