"""Every arm of a pool alone on a request: what the ledger estimates, really run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specdemo.engine import generate
from specdemo.evaluation.ledger import ledger
from specdemo.types import Pool, Request, Round


def rerun(request: Request, pool: Pool, rounds: Sequence[Round]) -> dict[str, Any]:
    """Regret of a run of this request against every fixed arm, each really run with the same seed.

    At temperature 0 all write the same text. With sampling each writes another draw, so an arm's rounds are scaled to
    as many tokens as the run wrote, and one rerun says little.
    """
    tokens = sum(len(r.tokens) for r in rounds)
    arms = {}
    for arm in pool.arms:
        alone = replace(request, selector="fixed", options={"arm": arm.name}, shadow=False)
        own = list(generate(alone, pool))
        written = sum(len(r.tokens) for r in own)
        arms[arm.name] = {"rounds": len(own) * tokens / max(1, written), "tokens": written}
    return ledger("rerun", len(rounds), tokens, arms)
