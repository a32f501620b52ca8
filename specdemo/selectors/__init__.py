"""Selectors: which arm drafts next. One file each; this registry feeds the CLI, the page, the tests and the docs."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specdemo.selectors.base import BaseSelector
from specdemo.selectors.discounted_ucb import DiscountedUCB
from specdemo.selectors.exp3spec import EXP3Spec
from specdemo.selectors.fixed import Fixed
from specdemo.selectors.hedgespec import HedgeSpec
from specdemo.selectors.metasd_exp3 import MetaSDEXP3
from specdemo.selectors.metasd_halving import MetaSDHalving
from specdemo.selectors.metasd_ucb import MetaSDUCB
from specdemo.selectors.none import NoDrafter
from specdemo.selectors.random import Random
from specdemo.selectors.round_robin import RoundRobin
from specdemo.selectors.router import Router
from specdemo.selectors.sliding_ucb import SlidingUCB
from specdemo.selectors.speed import Speed
from specdemo.selectors.ucbspec import UCBSpec
from specdemo.types import Selector, SpecdemoError

SELECTORS: dict[str, type[BaseSelector]] = {
    "hedgespec": HedgeSpec,
    "speed": Speed,
    "metasd-ucb": MetaSDUCB,
    "metasd-halving": MetaSDHalving,
    "metasd-exp3": MetaSDEXP3,
    "discounted-ucb": DiscountedUCB,
    "sliding-ucb": SlidingUCB,
    "ucbspec": UCBSpec,
    "exp3spec": EXP3Spec,
    "router": Router,
    "round-robin": RoundRobin,
    "random": Random,
    "fixed": Fixed,
    "none": NoDrafter,
}


def selector_options(name: str) -> dict[str, Any]:
    """Options of a selector with their defaults."""
    own = list(inspect.signature(SELECTORS[name].__init__).parameters.values())[4:]
    return {p.name: p.default for p in own}


def summary(name: str) -> str:
    """One line for people."""
    return (inspect.getdoc(SELECTORS[name]) or "").partition("\n")[0]


def read_option(text: str) -> tuple[str, Any]:
    """ "name=value", the value as JSON if it is JSON ("true", "0.5"), else as text.

    Raises:
        SpecdemoError: it reads otherwise.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SpecdemoError(f"The option {text!r} should be NAME=VALUE.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def read_selector(text: str) -> tuple[str, dict[str, Any]]:
    """ "name:option=value:option=value": a selector with its options.

    Raises:
        SpecdemoError: it reads otherwise.
    """
    name, *settings = text.strip().split(":")
    return name, dict(read_option(setting) for setting in settings)


def make_selector(
    name: str,
    arms: Sequence[str],
    lengths: Sequence[int],
    rng: np.random.Generator,
    options: Mapping[str, Any],
    prompt: Sequence[int] = (),
) -> Selector:
    """A selector for one answer to ``prompt`` (token ids). With no arms to choose from it is plain decoding.

    Raises:
        SpecdemoError: unknown name, unknown option, or an option's value that is wrong.
    """
    if name not in SELECTORS:
        raise SpecdemoError(f"There is no selector {name!r}. Choose one of: {', '.join(SELECTORS)}.")
    known = selector_options(name)
    for key, value in options.items():
        if key not in known:
            raise SpecdemoError(f"Selector {name!r} has no option {key!r}. It has: {', '.join(known) or 'none'}.")
        wanted = type(known[key])
        if not isinstance(value, wanted) and not (wanted is float and isinstance(value, int)):
            raise SpecdemoError(f"Option {key} of {name!r} is {value!r}; it should be a {wanted.__name__}.")
    selector = SELECTORS[name](arms, lengths, rng, **options) if arms else NoDrafter(arms, lengths, rng)
    selector.prompt = tuple(prompt)
    return selector
