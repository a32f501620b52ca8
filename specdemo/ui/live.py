"""The page's backend on the real engine, pools and store. torch is imported by the first loading, in the lane."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from specdemo.metrics import tokens_per_second
from specdemo.models import shipped
from specdemo.pools import load_pool, offered_pools, read_pool
from specdemo.provenance import provenance
from specdemo.record import record
from specdemo.selectors import SELECTORS, selector_options, summary
from specdemo.store import Store, default_db
from specdemo.types import Pool, Request, Round, SpecdemoError
from specdemo.ui.backend import (
    Ask,
    Baseline,
    Begun,
    Checking,
    Event,
    Example,
    Option,
    Outcome,
    Readiness,
    Source,
    Stored,
    Team,
)
from specdemo.ui.runs import Runs
from specdemo.ui.verdict import in_words

SAME, EARLIER = "the same request, measured just now", "an earlier run on this pool with as many rows"
ENOUGH = 16  # rounds that make a speed worth remembering
EXAMPLES = shipped("data") / "examples.jsonl"


class Live:
    """Loads pools when they are first wanted, keeps them, and remembers how fast plain decoding was on them.

    Args:
        store: where runs go; None stores nothing.
        pools: names or paths of pool files, the default first; None is all that come with the package.
        compile: answer at once through eager code, compile meanwhile, then use that (see :meth:`_compile`).
        how: ``dtype``, ``device`` of :func:`specdemo.pools.load_pool`.
    """

    def __init__(
        self, store: Store | None, pools: Sequence[str] | None = None, compile: bool = False, **how: Any
    ) -> None:
        self._behind = compile
        self._runs = Runs(store)
        self._files = {file.name: file for file in map(read_pool, pools or offered_pools())}
        self._how = how
        self._pools: dict[str, Pool] = {}
        self._readiness: dict[str, Readiness] = {}
        self._plain: dict[tuple[str, int], float] = {}  # (pool, rows) -> tokens/s

    # ------------------------------------------------------------------------------------------ what there is

    def pools(self) -> list[Option]:
        """See :class:`Backend`."""
        return [Option(name, file.title) for name, file in self._files.items()]

    def selectors(self) -> list[Option]:
        """See :class:`Backend`."""
        pools = [[arm.name for arm in file.arms] for file in self._files.values()]
        offered = [name for name, kind in SELECTORS.items() if any(kind.offered(arms) for arms in pools)]
        return [Option(name, summary(name), selector_options(name)) for name in offered]

    def examples(self) -> list[Example]:
        """See :class:`Backend`."""
        lines = EXAMPLES.read_text("utf-8").splitlines() if EXAMPLES.exists() else []
        rows = [json.loads(line) for line in lines if line.strip()]
        return [Example(row["domain"], row["prompt"]) for row in rows]

    def team(self, pool: str) -> Team:
        """See :class:`Backend`."""
        path = shipped("assets") / "strengths" / f"{pool}.json"
        measured = json.loads(path.read_text("utf-8")) if path.exists() else {}
        return Team(self._sources(pool), measured.get("length", {}), measured.get("note", ""))

    def problem(self) -> str | None:
        """See :class:`Backend`."""
        return self._runs.problem()

    def stored(self, run_id: str) -> Stored | None:
        """See :class:`Backend`."""
        return self._runs.read(run_id, self._sources)

    def _sources(self, pool: str) -> tuple[Source, ...]:
        file = self._files.get(pool)
        return tuple(Source(arm.name, arm.domain, arm.colour) for arm in file.arms) if file else ()

    # ------------------------------------------------------------------------------------------ loading

    def load(self, pool: str) -> None:
        """See :class:`Backend`. A pool that could not be loaded is tried again."""
        if pool in self._pools:
            return
        if pool not in self._files:
            raise SpecdemoError(f"There is no pool {pool!r} on this page. Choose one of: {', '.join(self._files)}.")
        try:
            self._readiness[pool] = Readiness("loading", "Loading the model")
            loaded = load_pool(str(self._files[pool].path), **self._how)
            self._readiness[pool] = Readiness("loading", "Warming up")
            _warm_up(loaded)
        except Exception as error:
            self._readiness[pool] = Readiness("failed", str(error))
            raise
        self._pools[pool], self._readiness[pool] = loaded, Readiness("ready")
        if self._behind:
            threading.Thread(target=self._compile, args=(pool,), name=f"compile-{pool}", daemon=True).start()

    def _compile(self, pool: str) -> None:
        """Compile behind the page: in a process of its own at low priority, because a compiler in this one would hold
        the page up; then load what it made. Runs that have begun go on as they began."""
        file = str(self._files[pool].path)
        options = [f"--{name}={value}" for name, value in self._how.items()]
        if subprocess.run([sys.executable, "-m", "specdemo.cli", "compile", f"--pool={file}", *options]).returncode:
            return  # it has said why on standard error; eager code serves
        loaded = load_pool(file, compile=True, **self._how)
        _warm_up(loaded)
        self._plain = {key: speed for key, speed in self._plain.items() if key[0] != pool}  # eager speeds
        self._pools[pool] = loaded

    def readiness(self, pool: str) -> Readiness:
        """See :class:`Backend`."""
        ready = self._readiness.get(pool) or Readiness("unloaded", "Not loaded yet")
        fetched = _megabytes_fetched() if ready.text == "Loading the model" else 0
        return replace(ready, text=f"Fetching the model (once): {fetched} MB so far") if fetched else ready

    # ------------------------------------------------------------------------------------------ answering

    def answer(self, ask: Ask, stop: threading.Event) -> Iterator[Event]:
        """See :class:`Backend`."""
        from specdemo.engine import generate
        from specdemo.target import fixed_rows

        pool, request = self._pools[ask.pool], ask.request
        plain = request.selector == "none" or not request.k
        key = (ask.pool, fixed_rows(request.k + 1))
        run_id = self._runs.begin(ask, provenance(pool.info))
        yield Begun(run_id, () if plain else self._sources(ask.pool), self._known(key))
        rounds: list[Round] = []
        for r in record(generate(request, pool), self._runs.store, run_id, should_stop=stop.is_set):
            rounds.append(r)
            yield r
        finished = not rounds or rounds[-1].finish is not None
        check = None
        if ask.check and finished and not plain:
            check = yield from _compared(ask.request, pool, rounds, stop)
        baseline = self._measured(key, rounds if plain else [], check)
        self._runs.end(run_id, check, baseline)
        yield Outcome("finished" if finished else "stopped", baseline, in_words(check))

    def _measured(self, key: tuple[str, int], plain: list[Round], check: dict[str, Any] | None) -> Baseline | None:
        """Speed of plain decoding: of this very request if it was decoded plainly, else the last one known."""
        speed = tokens_per_second(plain) if plain else (check or {}).get("plain_tokens_per_second")
        tokens = len(plain) or (check or {}).get("tokens", 0)
        if speed and (tokens >= ENOUGH or key not in self._plain):
            self._plain[key] = speed
        return Baseline(speed, SAME) if speed else self._known(key)

    def _known(self, key: tuple[str, int]) -> Baseline | None:
        return Baseline(self._plain[key], EARLIER) if key in self._plain else None


def _compared(
    request: Request, pool: Pool, rounds: list[Round], stop: threading.Event
) -> Generator[Event, None, dict[str, Any] | None]:
    """Compare with plain decoding; None if stopped. A sampled answer cannot be compared, only timed."""
    from specdemo.check import checking
    from specdemo.engine import generate

    result = yield from _counted(checking(request, pool, rounds), stop)
    if result is not None and result["identical"] is None:
        plain: list[Round] = []
        for r in generate(replace(request, selector="none", options={}), pool):
            plain.append(r)
            yield Checking(len(plain))
            if stop.is_set():
                return None
        result |= {"plain_tokens_per_second": tokens_per_second(plain), "tokens": len(plain)}
    return result


def _counted(
    steps: Generator[int, None, dict[str, Any]], stop: threading.Event
) -> Generator[Event, None, dict[str, Any] | None]:
    """Steps of a check as events, and its result; None if stopped."""
    while not stop.is_set():
        try:
            yield Checking(next(steps))
        except StopIteration as end:
            result: dict[str, Any] = end.value
            return result
    steps.close()
    return None


def _warm_up(pool: Pool) -> None:
    """The first forwards of a process cost more than all later ones."""
    from specdemo.engine import generate

    for _ in generate(Request(prompt="Hello", selector="none", max_new_tokens=4, ignore_eos=True), pool):
        pass


def _megabytes_fetched() -> int:
    """What lies in the folder that the embedded model is being fetched into."""
    from specdemo.models import embedded_folder

    total = 0
    for path in embedded_folder().parent.glob(".fetch-*/**/*"):
        with suppress(OSError):  # moved away meanwhile
            total += path.stat().st_size
    return total // 1_000_000


def serve(
    host: str | None = None,
    port: int | None = None,
    db: str | Path | None = None,
    pools: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Serve the page until interrupted; the model loads meanwhile.

    Args:
        host, port: where to listen; None is Gradio's default ($GRADIO_SERVER_NAME, $GRADIO_SERVER_PORT).
        db: SQLite file of the runs, None is the user's own.
        pools: pools to offer, the default first; None is all that come with the package.
        options: compile, dtype, device of :class:`Live`; anything else goes to ``gr.Blocks.launch``.
    """
    from specdemo.ui.app import launch

    how = {name: options.pop(name) for name in ("dtype", "device", "compile") if name in options}
    store = Store(db or default_db())
    try:
        launch(Live(store, pools, **how), host, port, **options)
    finally:
        store.close()
