"""Estimated rounds of every drafter beside really run ones: how far the ledger can be believed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from specdemo.evaluation import harness
from specdemo.evaluation.ledger import estimated
from specdemo.store import Store
from specdemo.types import Request, Round

WRITER = "writer"
WIDTH = 2.576  # standard errors on either side: 99 % of a normal law


def requests(template: Request, arms: Sequence[str], selector: str = "random") -> dict[str, Request]:
    """What is run on every prompt: a selector that writes, with all arms evaluated, and every arm alone. The writer
    should draft with every arm now and then: what never drafts is not calibrated."""
    alone = {arm: replace(template, selector="fixed", options={"arm": arm}, shadow=False) for arm in arms}
    return {WRITER: replace(template, selector=selector, options={}, shadow=True), **alone}


def agreement(items: Sequence[harness.Item], store: Store) -> list[dict[str, Any]]:
    """One record per arm, from the stored runs of these items (first turns only).

    Returns:
        ``arm``, ``answers``; means over answers of ``real`` rounds (scaled to as many tokens as the writer wrote, which
        at temperature 0 are the arm's own) and of estimated ones: ``uncalibrated``, ``own`` (calibrated by the answer
        alone) and ``calibrated`` (by all answers); ``difference``: calibrated minus real, and ``low`` and ``high``, its
        99 % interval, from the spread over answers.
    """
    real = {(row["prompt"], row["seed"], row["selector"]): row for row in harness.rows(items, store)}
    written = _written(items, store)
    found: dict[str, list[tuple[float, ...]]] = {}
    for key, rounds in written.items():
        own = estimated(rounds)
        every = estimated(rounds, [other for name, other in written.items() if name != key])
        for arm in own["arms"] if own else ():
            row = real.get((*key, arm))
            if row and own and every:
                scaled = row["rounds"] * sum(len(r.tokens) for r in rounds) / row["tokens"]
                one, all_ = own["arms"][arm], every["arms"][arm]
                found.setdefault(arm, []).append((scaled, one["uncalibrated"], one["rounds"], all_["rounds"]))
    return [_record(arm, np.array(values)) for arm, values in found.items()]


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The records as a Markdown table."""
    head = "| drafter | answers | real | uncalibrated | own | calibrated | difference (99 %) |\n" + "|---" * 7 + "|\n"
    return head + "\n".join(
        "| {arm} | {answers} | {real:.2f} | {uncalibrated:.2f} | {own:.2f} | {calibrated:.2f} | {difference:+.2f} "
        "({low:+.2f} to {high:+.2f}) |".format(**record)
        for record in records
    )


def _written(items: Sequence[harness.Item], store: Store) -> dict[tuple[str, int], list[Round]]:
    runs = {(i.prompt.id, i.request.seed): store.load_item(i.id) for i in items if i.selector == WRITER}
    return {key: run.rounds for key, run in runs.items() if run is not None}


def _record(arm: str, values: np.ndarray[Any, Any]) -> dict[str, Any]:
    means, differences = values.mean(0), values[:, 3] - values[:, 0]
    spread = WIDTH * differences.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    middle = float(differences.mean())
    named = dict(zip(("real", "uncalibrated", "own", "calibrated"), means.tolist(), strict=True))
    ends = {"low": middle - spread, "high": middle + spread}
    return {"arm": arm, "answers": len(values), **named, "difference": middle, **ends}
