"""The page's backend on the real engine, pools and store."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdemo.metrics import tokens_per_second
from specdemo.selectors import SELECTORS, summary
from specdemo.store import Store
from specdemo.types import Request, Round, SpecdemoError
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
    Status,
    Stored,
)
from specdemo.ui.verdict import in_words

if TYPE_CHECKING:
    from specdemo.types import Pool

SAME, EARLIER = "the same request, measured just now", "an earlier run on this pool with as many rows"
ENOUGH = 16  # rounds that make a speed worth remembering
EXAMPLES = Path(__file__).resolve().parents[2] / "data" / "examples.jsonl"
STATUS: dict[str, Status] = {
    "running": "running",
    "done": "finished",
    "stopped": "stopped",
    "error": "failed",
    "interrupted": "interrupted",
}


class Live:
    """Loads pools when they are first wanted, keeps them, and remembers how fast plain decoding was on them.

    Args:
        store: where runs go; None stores nothing.
        pools: names or paths of pool files, the default first; None is all that come with the package.
        dtype, device, compile: as in :func:`specdemo.pools.load_pool`.
    """

    def __init__(
        self,
        store: Store | None,
        pools: Sequence[str] | None = None,
        *,
        dtype: str = "auto",
        device: str = "auto",
        compile: bool = False,
    ) -> None:
        from specdemo.pools import pool_names, read_pool

        self.store = store
        self._files = {name: read_pool(name) for name in pools or pool_names()}
        self._how: dict[str, Any] = {"dtype": dtype, "device": device, "compile": compile}
        self._pools: dict[str, Pool] = {}
        self._readiness: dict[str, Readiness] = {}
        self._loading = threading.Lock()
        self._plain: dict[tuple[str, int], float] = {}  # (pool, rows) -> tokens/s
        self._session = lru_cache(4096)(lambda browser: store.new_session() if store else None)

    # ------------------------------------------------------------------------------------------ what there is

    def pools(self) -> list[Option]:
        """See :class:`Backend`."""
        return [Option(name, file.title) for name, file in self._files.items()]

    def selectors(self) -> list[Option]:
        """See :class:`Backend`."""
        return [Option(name, summary(name)) for name in SELECTORS]

    def examples(self) -> list[Example]:
        """See :class:`Backend`."""
        if not EXAMPLES.exists():
            return []
        lines = EXAMPLES.read_text("utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return [Example(row["domain"], row["prompt"]) for row in rows]

    def problem(self) -> str | None:
        """See :class:`Backend`."""
        return self.store.problem if self.store else None

    # ------------------------------------------------------------------------------------------ loading

    def load(self, pool: str) -> None:
        """As the contract says; a pool that could not be loaded is tried again.

        Raises:
            SpecdemoError: why it cannot be loaded.
        """
        with self._loading:
            if pool in self._pools:
                return
            if pool not in self._files:
                raise SpecdemoError(f"There is no pool {pool!r} on this page. Choose one of: {', '.join(self._files)}.")
            self._readiness[pool] = Readiness("loading", "Loading the model")
            try:
                self._pools[pool] = self._loaded(pool)
            except BaseException as error:
                self._readiness[pool] = Readiness("failed", str(error))
                raise
            self._readiness[pool] = Readiness("ready")

    def _loaded(self, name: str) -> Pool:
        """Load and warm up: the first forward of a process costs more than all later ones."""
        from specdemo.engine import generate
        from specdemo.pools import load_pool

        pool = load_pool(str(self._files[name].path), **self._how)
        self._readiness[name] = Readiness("loading", "Warming up")
        for _ in generate(Request(prompt="Hello", selector="none", max_new_tokens=2, ignore_eos=True), pool):
            pass
        return pool

    def readiness(self, pool: str) -> Readiness:
        """See :class:`Backend`."""
        ready = self._readiness.get(pool) or Readiness("loading", "Starting")
        fetched = _megabytes_fetched() if ready.text == "Loading the model" else 0
        return replace(ready, text=f"Fetching the model, {fetched} MB so far (once)") if fetched else ready

    # ------------------------------------------------------------------------------------------ runs

    def answer(self, ask: Ask, stop: threading.Event) -> Iterator[Event]:
        """See :class:`Backend`."""
        from specdemo.engine import generate
        from specdemo.record import record
        from specdemo.target import fixed_rows

        pool, plain = self._pools[ask.pool], ask.request.selector == "none" or not ask.request.k
        key = (ask.pool, fixed_rows(ask.request.k + 1))
        run_id = self._start(ask, pool)
        yield Begun(
            run_id, () if plain else _sources([(a.name, a.domain, a.colour) for a in pool.arms]), self._known(key)
        )
        rounds: list[Round] = []
        for r in record(generate(ask.request, pool), self.store, run_id, should_stop=stop.is_set):
            rounds.append(r)
            yield r
        finished = not rounds or rounds[-1].finish is not None
        check = None
        if plain:
            self._remember(key, tokens_per_second(rounds), len(rounds))
        elif ask.check and finished:
            check = yield from self._check(ask, pool, rounds, stop)
        baseline = (
            Baseline(check["plain_tokens_per_second"], SAME)
            if check and check.get("plain_tokens_per_second")
            else self._known(key)
        )
        if check and baseline:
            self._remember(key, baseline.speed, len(rounds))
        self._keep(run_id, check, baseline)
        yield Outcome("finished" if finished else "stopped", baseline, in_words(check))

    def _start(self, ask: Ask, pool: Pool) -> str | None:
        from specdemo.provenance import provenance

        if self.store is None:
            return None
        return self.store.start_run(self._session(ask.session), ask.request, ask.pool, provenance(pool.info))

    def _check(
        self, ask: Ask, pool: Pool, rounds: list[Round], stop: threading.Event
    ) -> Generator[Event, None, dict[str, Any] | None]:
        """Compare with plain decoding; None if stopped. Sampled answers cannot be compared, but timed."""
        from specdemo.check import checking
        from specdemo.engine import generate

        steps = checking(ask.request, pool, rounds)
        while not stop.is_set():
            try:
                yield Checking(next(steps))
            except StopIteration as end:
                result: dict[str, Any] = end.value
                break
        else:
            steps.close()
            return None
        if result["identical"] is None:
            plain: list[Round] = []
            for r in generate(replace(ask.request, selector="none", options={}), pool):
                plain.append(r)
                yield Checking(len(plain))
                if stop.is_set():
                    break
            result["plain_tokens_per_second"] = tokens_per_second(plain)
        return result

    def _known(self, key: tuple[str, int]) -> Baseline | None:
        speed = self._plain.get(key)
        return Baseline(speed, EARLIER) if speed else None

    def _remember(self, key: tuple[str, int], speed: float | None, rounds: int) -> None:
        """Answers of a few tokens measure nothing."""
        if speed and rounds >= ENOUGH:
            self._plain[key] = speed

    def _keep(self, run_id: str | None, check: dict[str, Any] | None, baseline: Baseline | None) -> None:
        """Store what is known after the run."""
        if self.store and run_id:
            if check:
                self.store.set_check(run_id, check)
            if baseline:
                self.store.set_baseline(run_id, {"tokens_per_second": baseline.speed, "of": baseline.of})

    def stored(self, run_id: str) -> Stored | None:
        """See :class:`Backend`."""
        run = self.store.load_run(run_id) if self.store else None
        if run is None:
            return None
        start = run.rounds[0].start if run.rounds else None
        known = {a.name: a for a in self._files[run.pool].arms} if run.pool in self._files else {}
        arms = (
            [
                (name, known[name].domain, known[name].colour) if name in known else (name, "", ("", ""))
                for name in start.drafters
            ]
            if start
            else []
        )
        baseline = Baseline(run.baseline["tokens_per_second"], run.baseline["of"]) if run.baseline else None
        return Stored(
            run.id,
            Ask(run.request, run.pool, run.check is not None),
            _sources(arms),
            run.rounds,
            Outcome(STATUS[run.status], baseline, in_words(run.check), run.error),
        )


def _sources(arms: Iterable[tuple[str, str, tuple[str, str]]]) -> tuple[Source, ...]:
    """One source per drafter, in the order of the arms."""
    return tuple({name: Source(name, about, colour) for name, about, colour in arms}.values())


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
        options: dtype, device, compile of :class:`Live`; anything else goes to ``gr.Blocks.launch``.
    """
    from specdemo.store import default_db
    from specdemo.ui.app import launch

    how = {name: options.pop(name) for name in ("dtype", "device", "compile") if name in options}
    store = Store(db or default_db())
    try:
        launch(Live(store, pools, **how), host, port, **options)
    finally:
        store.close()
