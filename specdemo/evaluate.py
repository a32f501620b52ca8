"""``specdemo evaluate``: drafters along known answers, selectors on prompts, estimates against reruns."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specdemo.cli import DOMAINS, OK, UsageError
from specdemo.commands import note
from specdemo.evaluation.prompts import Prompt, read_prompts
from specdemo.models import shipped
from specdemo.pools import load_pool, read_pool
from specdemo.types import Message, Request, Sampling, SpecdemoError

if TYPE_CHECKING:
    from specdemo.evaluation.harness import Item
    from specdemo.store import Store
    from specdemo.target import HFTarget

MIXED = "mixed"  # prompts of two domains


def drafters(args: argparse.Namespace) -> int:
    """Walk every drafter of a pool along the target's answers; acceptance lengths by domain."""
    from specdemo.bench import verify_curve
    from specdemo.evaluation import measure, table
    from specdemo.evaluation.publish import publish

    pool = load_pool(args.pool, args.dtype, args.device, args.compile)
    unknown = set(args.arm or ()) - {arm.name for arm in pool.arms}
    if unknown:
        raise UsageError(f"The pool {pool.name} has no arm {', '.join(sorted(unknown))}.")
    asked = measure.first_of_each(read(args.prompts or _shipped(DOMAINS)), args.per_domain)
    rows = measure.evaluate(pool, asked, args.arm, args.k, args.max_new_tokens, Path(args.out))
    if args.publish:
        forward_ms = verify_curve(cast("HFTarget", pool.target), [args.k + 1], 10)[0]["median_ms"]
        for path in publish(Path(args.publish), read_pool(args.pool), rows, args.k, forward_ms):
            note(f"wrote {path}")
    lengths, agreement = table.heat_map(rows, table.lengths), table.heat_map(rows, table.agreement)
    if args.json:
        print(json.dumps({"length": lengths, "agreement": agreement}))
    else:
        print(f"Mean acceptance length:\n\n{table.markdown(lengths)}")
        print(f"\nAgreement of the first drafted token:\n\n{table.markdown(agreement)}")
    return OK


def record(args: argparse.Namespace) -> int:
    """Record what every drafter would do at every position of greedy answers."""
    from specdemo.evaluation import recorder

    out = Path(args.out)
    if out.suffix != ".npz":
        raise UsageError(f"--out is {args.out}; a recorded world is an .npz file.")
    asked = training_prompts(args.domain, args.count, args.seed) if args.domain else _prompts(args)
    pool = load_pool(args.pool, args.dtype, args.device, args.compile)
    kept = Path(args.answers) if args.answers else out.with_suffix(".jsonl")
    world = recorder.record(pool, asked, args.k, args.max_new_tokens, out, kept)
    round_ms, (once, position) = world.round_ms(), world.evaluation_ms()
    note(
        f"{len(world.answers)} answers in {out}; a forward takes {round_ms[0, 0]:.1f} ms, a round "
        f"{round_ms[:, 1:].min():.1f} to {round_ms.max():.1f}, an evaluation {once:.1f} and {position:.1f} per token"
    )
    return OK


def training_prompts(domains: Sequence[str], count: int, seed: int) -> list[Prompt]:
    """Prompts of the training templates, ``count`` of each domain."""
    from specdemo.training.prompts import write_prompts

    return [
        Prompt(f"{domain}-{seed}-{i}", domain, (text,))
        for domain in domains
        for i, text in enumerate(write_prompts(domain, count, seed))
    ]


def selectors(args: argparse.Namespace) -> int:
    """Every selector on every prompt with every seed; the table compares them prompt by prompt."""
    from specdemo.evaluation import harness, paired

    wanted = _requests(args)
    baseline = args.baseline or next(iter(wanted))
    if baseline not in wanted:
        raise UsageError(f"The baseline {baseline} is not among the selectors {', '.join(wanted)}.")
    with _run(args, wanted, _prompts(args)) as (items, store):
        rows = harness.rows(items, store)
    records = paired.compare(rows, baseline)
    text = paired.as_text(records)
    _write(
        args.out,
        {"table.txt": text + "\n", "table.csv": paired.as_csv(records), "table.json": records, "rows.json": rows},
    )
    print(json.dumps(records) if args.json else text)
    return OK


def ledger(args: argparse.Namespace) -> int:
    """Every arm's rounds as the ledger estimates them from one text, beside those it really takes."""
    from specdemo.evaluation import agreement

    arms = [arm.name for arm in read_pool(args.pool).arms]
    try:
        wanted = agreement.requests(_template(args), arms, args.writer)
    except SpecdemoError as error:
        raise UsageError(str(error)) from error
    first = [replace(prompt, turns=prompt.turns[:1]) for prompt in _prompts(args)]
    with _run(args, wanted, first) as (items, store):
        records = agreement.agreement(items, store)
    text = agreement.markdown(records)
    _write(args.out, {"ledger.md": text + "\n", "ledger.json": records})
    print(json.dumps(records) if args.json else text)
    return OK


@contextmanager
def _run(
    args: argparse.Namespace, wanted: Mapping[str, Request], prompts: Sequence[Prompt]
) -> Iterator[tuple[list[Item], Store]]:
    """Run what the store has not of these requests on these prompts; the items, and the open store."""
    from specdemo.evaluation import harness
    from specdemo.provenance import provenance
    from specdemo.store import Store, default_db

    pool = load_pool(args.pool, args.dtype, args.device, args.compile)
    items = harness.make_items(pool, prompts, wanted, args.seeds)
    with closing(Store(args.db or default_db())) as store:
        if store.problem:
            raise SpecdemoError(store.problem)
        done = harness.run(pool, items, store, provenance(pool.info))
        if len(done) < len(items):
            note(f"{len(items) - len(done)} of {len(items)} items are missing. {store.problem or 'Start again.'}")
        yield items, store


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    from specdemo.evaluation import measure

    return measure.first_of_each(read(args.prompts or _shipped((*DOMAINS, MIXED))), args.per_domain)


def read(files: Sequence[str | Path]) -> list[Prompt]:
    """All prompts of some files.

    Raises:
        UsageError: one cannot be read.
    """
    try:
        return [row for file in files for row in read_prompts(Path(file))]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"The prompts cannot be read ({error}). A file has a JSON object a line, with prompt (or a list of turns), "
            "and may have id and domain."
        ) from error


def _shipped(names: Sequence[str]) -> list[Path]:
    return [shipped("data") / f"{name}.jsonl" for name in sorted(names)]


def _requests(args: argparse.Namespace) -> dict[str, Request]:
    """{selector as it was asked for: a request with it}; names and options are checked before a model is loaded."""
    import numpy as np

    from specdemo.selectors import make_selector, read_selector

    arms = [arm.name for arm in read_pool(args.pool).arms]
    found = {}
    for text in args.selectors.split(","):
        try:
            name, options = read_selector(text)
            make_selector(name, arms, [args.k] * len(arms), np.random.default_rng(0), options)
            wanted = replace(_template(args), calibrate=args.calibrate, shadow=args.shadow)
        except SpecdemoError as error:
            raise UsageError(str(error)) from error
        found[text.strip()] = replace(wanted, selector=name, options=options)
    return found


def _template(args: argparse.Namespace) -> Request:
    sampling = Sampling(**{field: getattr(args, field) for field in Sampling.__dataclass_fields__})
    return Request(messages=(Message("user", ""),), k=args.k, max_new_tokens=args.max_new_tokens, sampling=sampling)


def _write(folder: str | None, files: Mapping[str, Any]) -> None:
    """Text as it is, everything else as JSON; nothing without a folder."""
    for name, content in files.items() if folder else ():
        Path(folder or "").mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (Path(folder or "") / name).write_text(text, "utf-8")
