"""A backend without a model: hostile tokens from several drafters at a given rate."""

from __future__ import annotations

import codecs
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from specdemo.record import record
from specdemo.store import Store
from specdemo.types import Finish, Request, Round, Snapshot, SpecdemoError, Start
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

DRAFTERS = ("prompt-lookup", "suffix", "small-lm", "head-code", "head-chat")
HOSTILE = [
    b"${1+1}", b"{{x}}", b"{{{x}}}", b"<script>alert(1)</script>", b"<img src=x onerror=alert(2)>", b"`", b"```js\n",
    b"\r\n", b"a\x1fb", b"\x1e", b"\x1e1", b"\x00", b"&amp;", b"</span>", b"@children", b"\\n", b"\\u001f", b"\t",
    b"    ",
    "\u2028".encode(), "\u202eabc\u202c".encode(), b"e", "\u0301".encode(), "日本".encode(), "العربية".encode(),
    b"\xed\xa0\x80",
]  # fmt: skip
SPLIT = ["😀", "👩‍💻", "🇩🇪", "é"]  # each byte is a token of its own
WORDS = [
    "the",
    "model",
    "proposes",
    "several",
    "words",
    "and",
    "a",
    "target",
    "checks",
    "them",
    "all",
    "in",
    "one",
    "pass",
]


def script(seed: int, n: int, hostile: float = 0.1) -> list[bytes]:
    """n byte-level tokens."""
    rng, tokens = random.Random(seed), [f"run {seed}:".encode()]
    while len(tokens) < n:
        x = rng.random()
        if x < hostile * 0.6:
            tokens.append(rng.choice(HOSTILE))
        elif x < hostile:
            tokens += [bytes([b]) for b in rng.choice(SPLIT).encode()]
        elif x < hostile + 0.03:
            tokens.append(b"\n")
        else:
            tokens.append((" " + rng.choice(WORDS)).encode())
    return tokens[:n]


def pieces(tokens: Sequence[bytes]) -> list[str]:
    """Text that became final with each token; the last one gets what is left. Surrogates come through, on purpose."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
    out = []
    for i, token in enumerate(tokens):
        try:
            out.append(decoder.decode(token, final=i == len(tokens) - 1))
        except UnicodeDecodeError:
            out.append("\ufffd")
            decoder.reset()
    return out


@dataclass
class Scripted:
    """Backend for tests.

    Attributes:
        rate: tokens per second. ``may_load``: loading ends once it is set. ``fail_at``: tokens after which a run fails.
        store_problem: what to claim about the store. ``checked``: result of every check.
        emitted: per run, wall time at which each piece of text left the engine, in seconds. ``ended``: the last's.
        late: rounds that ended after a stop was asked for.
        text: words to write instead of hostile tokens (screenshots).
    """

    store: Store | None = None
    rate: float = 100.0
    may_load: threading.Event = field(default_factory=threading.Event)
    fail_at: int = 0
    store_problem: str | None = None
    hostile: float = 0.1
    loaded: bool = False
    text: str = ""
    emitted: dict[str, list[float]] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    late: int = 0
    asked: list[Ask] = field(default_factory=list)
    checked: dict[str, Any] | None = None
    plain: Baseline | None = None

    def pools(self) -> list[Option]:
        return [Option("scripted", "no model at all: scripted tokens"), Option("other", "another pool")]

    def selectors(self) -> list[Option]:
        return [
            Option("hedgespec", "Weighs every drafter by what it would have had accepted, on every token."),
            Option("none", "Plain decoding: nobody drafts."),
        ]

    def team(self, pool: str) -> Team:
        sources = (*(Source(name, f"drafter {i}") for i, name in enumerate(DRAFTERS)), Source("<b>x</b>", "<script>"))
        rows = {name: {"code": 1.5 + 0.2 * i, "<i>": 2.5 - 0.2 * i} for i, name in enumerate(DRAFTERS)}
        return Team(sources, rows, "mean acceptance length & more")

    def examples(self) -> list[Example]:
        prompts = {
            "chat": ["Explain to a child why the sky is blue.", "Plan a quiet weekend."],
            "code": ["Write a Python function that merges two sorted lists.", "Reverse a string in C."],
            "maths": ["A train leaves at 9:40 and arrives at 12:05. How long does it travel?", "What is 17 × 23?"],
            "summary": [
                "Summarise in two sentences: The harbour was built in 1873, and enlarged twice.",
                "Shorten this.",
            ],
        }
        return [Example(domain, p) for domain, ps in prompts.items() for p in ps]

    def load(self, pool: str) -> None:
        if not self.loaded:
            self.may_load.wait(60)
        self.loaded = True

    def readiness(self, pool: str) -> Readiness:
        if self.loaded:
            return Readiness("ready")
        return Readiness("loading", "Loading the model", 0.4)

    def problem(self) -> str | None:
        return self.store_problem or Runs(self.store).problem()

    def stored(self, run_id: str) -> Stored | None:
        return Runs(self.store).read(run_id, lambda _: self.sources())

    def sources(self) -> tuple[Source, ...]:
        return tuple(Source(name, f"drafter {i}") for i, name in enumerate(DRAFTERS))

    def answer(self, ask: Ask, stop: threading.Event) -> Iterator[Event]:
        runs, check = Runs(self.store), None
        run_id = runs.begin(ask, {"pool_hash": "none"})
        emitted, rounds = self.emitted.setdefault(str(run_id), []), []
        self.asked.append(ask)
        yield Begun(run_id, self.sources(), self.plain)
        for r in record(self.write(ask.request), self.store, run_id, should_stop=stop.is_set):
            rounds.append(r)
            self.late += stop.is_set()
            emitted += [time.time()] * len(r.pieces)
            yield r
        self.ended[str(run_id)] = time.time()
        finished = rounds[-1].finish is not None
        if ask.check and finished:
            for tokens in range(0, 60, 20):
                time.sleep(0.02)
                yield Checking(tokens)
            check = self.checked
        runs.end(run_id, check, self.plain)
        yield Outcome("finished" if finished else "stopped", self.plain, in_words(check))

    def write(self, request: Request) -> Iterator[Round]:
        """Rounds at the rate, each with a draft of a random drafter."""
        rng, n = random.Random(request.seed), request.max_new_tokens
        texts = self.words(n) if self.text else pieces(script(request.seed, n, self.hostile))
        start = time.monotonic()
        done, lag = 0, 0
        while done < n:
            if self.fail_at and done >= self.fail_at:
                raise SpecdemoError("The scripted engine broke on purpose. Nothing can be done.")
            drafted = min(request.k, n - done - 1) if request.selector != "none" else 0
            accepted = rng.randint(0, drafted)
            arm = rng.randrange(len(DRAFTERS)) if drafted else -1
            block = accepted + 1
            time.sleep(max(0.0, start + (done + block) / self.rate - time.monotonic()))
            finish: Finish | None = "length" if done + block >= n else None
            held = 0 if finish else rng.randint(0, 1)  # text may lag behind its token
            yield Round(
                index=self.index(done),
                arm=arm,
                k=request.k,
                draft=tuple(range(done, done + drafted)),
                parents=None,
                draft_p=tuple(0.9 for _ in range(drafted)),
                draft_q=tuple(round(rng.uniform(0.2, 1), 3) for _ in range(drafted)),
                drafted=drafted,
                accepted=accepted,
                path=tuple(range(accepted)),
                tokens=tuple(range(done, done + block)),
                p=tuple(round(rng.uniform(0.3, 1), 3) for _ in range(block)),
                pieces=tuple(texts[done - lag : done + block - held]),
                finish=finish,
                draft_ms=1.0,
                verify_ms=8.0,
                feedback_ms=0.5,
                learn_ms=0.0,
                other_ms=0.5,
                at_ms=1000 * (done + block) / self.rate,
                snapshot=Snapshot("weight", (0.2,) * len(DRAFTERS), (None,) * len(DRAFTERS), (0.1,) * len(DRAFTERS)),
                start=None if done else Start(12, 20.0, 0.0, request.k + 1, DRAFTERS, DRAFTERS),
            )
            done, lag = done + block, held

    def index(self, done: int) -> int:
        self._index = 0 if not done else self._index + 1
        return self._index

    def words(self, n: int) -> list[str]:
        words = [w if w == "\n" else " " + w for line in self.text.splitlines() for w in (*line.split(" "), "\n")]
        return (words * (n // len(words) + 1))[:n]
