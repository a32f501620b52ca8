"""What the commands do. Results go to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from specdemo.cli import DIFFERENT, INTERRUPTED, OK, UsageError, request
from specdemo.pools import load_pool, pool_names, read_pool
from specdemo.types import Pool, Request, Round, SpecdemoError

if TYPE_CHECKING:
    from specdemo.store import Store
    from specdemo.target import HFTarget

Json = dict[str, Any]


def serve(args: argparse.Namespace) -> int:
    """Serve the page until interrupted."""
    from specdemo.ui.live import serve as serve_page

    serve_page(host=args.host, port=args.port, db=args.db, compile=args.compile)
    return OK


def generate(args: argparse.Namespace) -> int:
    """Answer one prompt: the text as it is written, or one JSON object."""
    from specdemo.evaluation.ledger import text_table

    asked = request(args)
    _precheck(asked, args.pool)
    pool = load_pool(args.pool, args.dtype, args.device, args.compile)
    store = None if args.no_db else _store(args.db)
    answer = _Answer(asked, pool, store)
    try:
        with closing(answer.pieces()) as pieces:
            for piece in pieces:
                if not args.json:
                    print(piece, end="", flush=True)
        if args.check and not answer.interrupted:
            answer.compare()
        if args.rerun and not answer.interrupted:
            answer.rerun()
    finally:
        result = answer.result(args.check)
        if store:
            store.close()
    print(json.dumps(result) if args.json else "", flush=True)
    if not args.json:
        for ledger in answer.regret.values():
            note(text_table(ledger))
    note(_summary(result))
    if answer.interrupted:
        return INTERRUPTED
    return DIFFERENT if args.check and result["check"]["identical"] is False else OK


def _precheck(asked: Request, pool: str) -> None:
    """Find wrong names and options before a model is loaded."""
    import numpy as np

    from specdemo.selectors import make_selector

    try:
        arms = [arm.name for arm in read_pool(pool).arms]
        make_selector(asked.selector, arms, [asked.k] * len(arms), np.random.default_rng(0), asked.options)
    except SpecdemoError as error:
        raise UsageError(str(error)) from error


class _Answer:
    """A run being written, stored and perhaps compared."""

    def __init__(self, asked: Request, pool: Pool, store: Store | None) -> None:
        from specdemo.provenance import provenance

        self.asked, self.pool, self.store = asked, pool, store
        self.rounds: list[Round] = []
        self.interrupted = False
        self.check: Json | None = None
        self.reruns: Json = {}
        self.run_id = store.start_run(None, asked, pool.name, provenance(pool.info)) if store else None

    def pieces(self) -> Generator[str, None, None]:
        """The text as it becomes final. Ctrl-c ends it after the round in flight; a second one at once."""
        from specdemo.engine import generate
        from specdemo.record import record

        rounds = record(generate(self.asked, self.pool), self.store, self.run_id, lambda: self.interrupted)
        with closing(cast("Generator[Round, None, None]", rounds)) as run:
            before = signal.signal(signal.SIGINT, self._interrupt)
            try:
                for round in run:
                    self.rounds.append(round)
                    yield "".join(round.pieces)
            finally:
                signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True

    def compare(self) -> None:
        """Decode plainly, too."""
        from specdemo.check import check

        note("decoding plainly to compare ...")
        self.check = check(self.asked, self.pool, self.rounds)
        if self.store and self.run_id:
            self.store.set_check(self.run_id, self.check)

    def rerun(self) -> None:
        """Let every arm write the answer alone."""
        from specdemo.evaluation.rerun import rerun

        note("running every arm alone ...")
        self.reruns = {"rerun": rerun(self.asked, self.pool, self.rounds)}
        if self.store and self.run_id:
            self.store.set_regret(self.run_id, self.regret)

    @property
    def regret(self) -> Json:
        """Rounds against those of every fixed arm: "estimated", if arms were evaluated, and "rerun", if wanted."""
        from specdemo.evaluation.ledger import estimated

        known = estimated(self.rounds)
        return {**({"estimated": known} if known else {}), **self.reruns}

    def result(self, checked: bool) -> Json:
        """Everything there is to say, JSON-able."""
        from specdemo.metrics import summarise

        start = self.rounds[0].start if self.rounds else None
        return {
            "run_id": self._stored(),
            **summarise(self.rounds).to_dict(),
            "status": "stopped" if self.interrupted else "done",
            "pool": self.pool.name,
            "selector": self.asked.selector,
            "k": self.asked.k,
            "seed": self.asked.seed,
            "prompt_tokens": start.prompt_tokens if start else None,
            "rows": start.rows if start else None,
            **({"check": self.check} if checked else {}),
            **({"regret": self.regret} if self.regret else {}),
            "compile_note": getattr(self.pool.target, "compile_note", ""),  # why it ran without, though asked for
            **{key: self.pool.info.get(key) for key in ("dtype", "device", "threads", "compile", "target", "hash")},
        }

    def _stored(self) -> str | None:
        """The run's id if it is in the database; says so if it is not."""
        if self.store is None or (self.store.flush() and self.store.problem is None):
            return self.run_id
        note(f"the run was not stored: {self.store.problem or 'the database does not answer.'}")
        return None


def _store(path: str | None) -> Store:
    from specdemo.store import Store, default_db

    return Store(path or default_db())


def _summary(result: Json) -> str:
    """One line about a run."""
    speed, length = result["tokens_per_second"], result["mean_acceptance_length"]
    parts = [
        f"{len(result['token_ids'])} tokens in {result['num_spec_steps']} rounds",
        f"{length:.2f} tokens a round" if length else "",
        f"{speed:.1f} tokens/s" if speed else "",
        f"ended by {result['finish_reason']}" if result["finish_reason"] else "stopped",
        f"run {result['run_id']}" if result["run_id"] else "",
        _verdict(result.get("check")),
    ]
    return ", ".join(part for part in parts if part)


def _verdict(check: Json | None) -> str:
    if check is None:
        return ""
    if check["identical"] is None:
        return f"not compared: {check['why']}"
    if check["identical"]:
        return "identical to plain decoding"
    d = check["first_difference"]
    return (
        f"NOT identical to plain decoding: token {d['index']} is {d['text']!r} (margin {_margin(d['margin'])}) instead "
        f"of {d['plain_text']!r} (margin {_margin(d['plain_margin'])})"
    )


def _margin(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def doctor(args: argparse.Namespace) -> int:
    """Print the report of doctor.py; 1 if something essential is broken."""
    from specdemo.doctor import lines, report

    found = report(args.db, fetch=not args.no_fetch, verify=args.verify)
    print(json.dumps(found, indent=2) if args.json else "\n".join(lines(found)))
    return OK if found["ok"] else 1


def list_entries(args: argparse.Namespace) -> int:
    """Print a registry."""
    entries = {"selectors": _selectors, "drafters": _drafters, "pools": _pools}[args.what]()
    if args.json:
        print(json.dumps(entries, indent=2, default=str))
    else:
        width = max(len(entry["name"]) for entry in entries)
        print("\n".join(f"{entry['name']:<{width}}  {entry['summary']}" for entry in entries))
    return OK


def _selectors() -> Any:
    from specdemo.selectors import SELECTORS, selector_options, summary

    return [
        {"name": n, "summary": summary(n), "information": s.information, "options": selector_options(n)}
        for n, s in SELECTORS.items()
    ]


def _drafters() -> Any:
    from specdemo.drafters import DRAFTERS

    return [{"name": name, "summary": f.summary, "options": f.options} for name, f in DRAFTERS.items()]


def _pools() -> Any:
    def entry(name: str) -> Json:
        pool = read_pool(name)
        arms = [{"name": a.name, "family": a.family, "domain": a.domain, "options": dict(a.options)} for a in pool.arms]
        about = {"target": pool.target.source, "gpu": pool.gpu, "arms": arms, "path": str(pool.path)}
        return {"name": name, "summary": pool.title + (f" (GPU, {pool.gpu} GB)" if pool.gpu else ""), **about}

    return [entry(name) for name in pool_names()]


def simulate(args: argparse.Namespace) -> int:
    """Let selectors write the same texts, synthetic or recorded; what each loses against the best fixed arm."""
    from specdemo.evaluation import simulate as simulation
    from specdemo.evaluation.recorded import load
    from specdemo.evaluation.worlds import World

    selectors = simulation.SELECTORS if args.selectors is None else tuple(args.selectors.split(","))
    recorded = args.world.endswith(".npz")  # texts to their ends, all of them
    rounds = (10**6 if recorded else 300) if args.rounds is None else args.rounds
    seeds = (10**6 if recorded else 20) if args.seeds is None else args.seeds
    work = rounds * seeds * len(selectors)  # a process takes about a second to start
    processes = args.processes or (min(os.cpu_count() or 1, max(1, seeds)) if work > 50_000 else 1)
    results = []
    try:
        for arms in args.arms:
            world = (
                load(Path(args.world), args.alternate)
                if recorded
                else World(args.world, arms, args.gap, args.base, args.segment, tuple(args.cost), args.evaluation_cost)
            )
            results += simulation.simulate(world, selectors, rounds, seeds, args.k, args.signal, processes=processes)
    except SpecdemoError as error:
        raise UsageError(str(error)) from error
    print(json.dumps([r.to_dict() for r in results]) if args.json else simulation.table(results))
    return OK


def bench(args: argparse.Namespace) -> int:
    """Measure the pool: a forward of n rows, plain decoding against ``transformers.generate``, and what drafts cost."""
    from specdemo.bench import run_bench, table
    from specdemo.costs import drafting_costs, selector_costs

    if min(args.rows, args.repeats, args.tokens) < 1:
        raise UsageError("--rows, --repeats and --tokens must be at least 1.")
    pool = load_pool(args.pool, args.dtype, args.device, args.compile)
    note("measuring; other work on this machine spoils the numbers ...")
    measured = run_bench(cast("HFTarget", pool.target), range(1, args.rows + 1), args.repeats, args.tokens)
    if pool.arms:
        measured["drafting"] = drafting_costs(pool, repeats=args.repeats)
    measured["selectors"] = selector_costs()
    print(json.dumps({**measured, "pool": dict(pool.info)}) if args.json else table(measured))
    return OK


def compile(args: argparse.Namespace) -> int:
    """Make the compiled code of a pool's target, so that nobody has to wait for it later."""
    if hasattr(os, "nice"):
        os.nice(10)  # somebody may be using the machine, the page for one
    target = cast("HFTarget", load_pool(args.pool, args.dtype, args.device, compile=True).target)
    waited = target.warm_up(1, 64)
    if target.compile_note:
        raise SpecdemoError(target.compile_note)
    note(f"{target.name} is scored through compiled code on this machine; loading it takes {waited / 1000:.0f} s.")
    return OK


def train(args: argparse.Namespace) -> int:
    """One step of training, see docs/training.md."""
    from specdemo.evaluate import read as read_files
    from specdemo.training import distil, features, prompts, recipes
    from specdemo.training.heads import Recipe

    if args.step == "router":
        return _train_router(args)
    target = cast("HFTarget", load_pool(args.pool, args.dtype, args.device, args.compile, arms=False).target)
    if args.step == "distil":
        given = None if args.prompts is None else [row.prompt for row in read_files([args.prompts])]
        for domain in args.domain or prompts.DOMAINS:
            distil.distil(domain, args.count, target, Path(args.corpus), given, args.batch, args.seed)
        return OK
    if args.step == "features":
        features.extract(Path(args.corpus), Path(args.features), target, recipes.feature_layers(target))
        return OK
    settings: Json = {"positions": int(args.positions), "seed": args.seed, **({"lr": args.lr} if args.lr else {})}
    recipe, read, out = Recipe(**settings), Path(args.features), Path(args.out)
    if args.step == "head":
        start = Path(args.start) if args.start else None
        recipes.train_head(target, read, args.domain, out, args.name, recipe, start)
    elif args.step == "specialist":
        recipes.train_specialist(target, read, args.domain, out, args.name, recipe, args.rank, args.vocabulary)
    else:
        recipes.train_hydra(target, read, args.domain, out, recipe, args.heads)
    return OK


def _train_router(args: argparse.Namespace) -> int:
    """From recorded worlds: prompts, and the arm that was fastest on each."""
    from collections import Counter

    from specdemo.evaluation.recorded import load
    from specdemo.evaluation.texts import best_arms
    from specdemo.training.router import cross_validated, train_router

    worlds = [load(Path(path)) for path in args.world]
    prompts = [answer.prompt.tolist() for world in worlds for answer in world.answers]
    best = [arm for world in worlds for arm in best_arms(world)]
    train_router(prompts, best, args.out)
    told = ", ".join(f"{arm} {count}" for arm, count in Counter(best).most_common())
    known = f"; {cross_validated(prompts, best):.0%} of prompts it was not trained on are told rightly"
    note(f"wrote {args.out}, from {len(best)} prompts ({told}){known if len(best) >= 10 else ''}")
    return OK


def evaluate(args: argparse.Namespace) -> int:
    """Measure drafters, selectors or estimates."""
    from specdemo import evaluate as measure

    return int(getattr(measure, args.what)(args))


def note(text: str) -> None:
    """A line for people, on standard error."""
    print(f"specdemo: {text}", file=sys.stderr, flush=True)
