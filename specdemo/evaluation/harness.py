"""Selectors on prompts: every prompt with every selector and seed, each an item of its own, stored as it is run.

Items are independent of one another and have stable ids, so an evaluation that was killed goes on where it was, and
items may be run in any order, or by several processes on one store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from specdemo.engine import generate
from specdemo.evaluation.prompts import Prompt
from specdemo.metrics import text
from specdemo.record import record
from specdemo.rows import dumps
from specdemo.store import Store
from specdemo.types import Message, Pool, Request

WARM_UP = 8  # tokens of an answer of each selector that is not measured


@dataclass(frozen=True, slots=True)
class Item:
    """One conversation with one selector and one seed.

    Attributes:
        id: the same for the same pool, prompt, request and seed, whenever and wherever.
        selector: as it was asked for, options included.
        request: its first turn.
    """

    id: str
    prompt: Prompt
    selector: str
    request: Request


def make_items(
    pool: Pool, prompts: Sequence[Prompt], selectors: Mapping[str, Request], seeds: Sequence[int]
) -> list[Item]:
    """All items, interleaved: a prompt's items follow one another, so that whatever slows the machine down slows all
    selectors alike, and another selector comes first each time.

    Args:
        selectors: {name in tables: request with the selector, its options and all settings; messages are replaced}.
    """
    names = list(selectors)
    items = []
    for n, (seed, prompt) in enumerate((seed, prompt) for seed in seeds for prompt in prompts):
        for name in names[n % len(names) :] + names[: n % len(names)]:
            request = replace(selectors[name], messages=(Message("user", prompt.prompt),), prompt=None, seed=seed)
            items.append(Item(_id(pool, prompt, request), prompt, name, request))
    return items


def run(pool: Pool, items: Sequence[Item], store: Store, info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Run the items that the store has not, with a bar; returns a row for every item (see :func:`rows`)."""
    done = store.summaries(item.id for item in items)
    missing = [item for item in items if any((item.id, turn) not in done for turn in range(len(item.prompt.turns)))]
    for item in {item.selector: item for item in missing}.values():
        for _ in generate(replace(item.request, max_new_tokens=WARM_UP, shadow=False), pool):
            pass
    for item in tqdm(missing, desc="evaluate", unit="item", total=len(items), initial=len(items) - len(missing)):
        run_item(pool, item, store, info)
    return rows(items, store)


def run_item(pool: Pool, item: Item, store: Store, info: Mapping[str, Any]) -> None:
    """A conversation, turn by turn, each a run in the store; it knows nothing of other items."""
    messages: tuple[Message, ...] = ()
    for turn, said in enumerate(item.prompt.turns):
        messages = (*messages, Message("user", said))
        request = replace(item.request, messages=messages)
        run_id = store.start_run(None, request, pool.name, info, item=item.id, turn=turn)
        answer = list(record(generate(request, pool), store, run_id))
        messages = (*messages, Message("assistant", text(answer)))


def rows(items: Sequence[Item], store: Store) -> list[dict[str, Any]]:
    """What the store knows about finished items, JSON-able: ``item``, ``prompt`` (its id), ``domain``, ``selector``,
    ``seed``, and, all turns together, ``tokens``, ``rounds``, ``ms`` (of the rounds), ``switches`` and ``regret``
    (estimated rounds above those of the best fixed arm; None without a shadow or full information)."""
    found = store.summaries(item.id for item in items)
    complete = [item for item in items if all((item.id, t) in found for t in range(len(item.prompt.turns)))]
    return [_row(item, [found[item.id, turn] for turn in range(len(item.prompt.turns))]) for item in complete]


def _row(item: Item, turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    regrets = [turn["regret"]["estimated"]["regret"] for turn in turns if turn["regret"]]
    return {
        "item": item.id,
        "prompt": item.prompt.id,
        "domain": item.prompt.domain,
        "selector": item.selector,
        "seed": item.request.seed,
        "tokens": sum(len(turn["token_ids"]) for turn in turns),
        "rounds": sum(turn["num_spec_steps"] for turn in turns),
        "ms": sum(turn["timings"]["total_ms"] for turn in turns),
        "switches": sum(turn["switches"] for turn in turns),
        "regret": sum(regrets) if len(regrets) == len(turns) else None,
    }


def _id(pool: Pool, prompt: Prompt, request: Request) -> str:
    told = dumps([pool.name, pool.info.get("hash"), pool.info.get("dtype"), prompt.turns, request])
    return hashlib.sha256(told.encode()).hexdigest()[:20]
