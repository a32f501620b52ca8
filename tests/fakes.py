"""Fakes of every contract: a target whose law is a table, drafters with known laws, dice that try every outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch

from specdemo.types import Arm, DraftContext, Pool, Proposal, Request, Rng, Round, Rows, Verified

Law = Callable[[Sequence[int]], Sequence[float]]  # context -> logits [V]


class ByteTokenizer:
    """A token is a byte; the prompt's text is its bytes; ids from 256 on have no text."""

    def encode(self, request: Request) -> list[int]:
        text = request.prompt if request.prompt is not None else "\n".join(m.content for m in request.messages)
        return list(text.encode()) or [0]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(t for t in tokens if t < 256).decode("utf-8", "replace")


class SmallTokenizer:
    """Prompts are digits, one token each; text is letters, so that a token is a character."""

    def encode(self, request: Request) -> list[int]:
        return [int(c) for c in request.prompt or "0"]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(97 + t) for t in tokens)


class FakeSession:
    """Keeps the context and nothing else; rows come straight from the law."""

    compile_ms = 0.0
    hidden = None

    def __init__(self, target: FakeTarget, rows: int) -> None:
        self.target, self.rows, self.text = target, rows, list[int]()
        self.forwards = 0

    def prefill(self, tokens: Sequence[int]) -> None:
        assert tokens
        self.text = list(tokens)

    def score(self, proposal: Proposal) -> torch.Tensor:
        assert len(proposal.tokens) < self.rows
        assert len(self.text) < self.target.window
        self.forwards += 1
        self.proposal, contexts = proposal, [self.text]
        for i, token in enumerate(proposal.tokens):
            contexts.append([*contexts[proposal.parent(i) + 1], token])
        return torch.tensor([list(self.target.law(c)) for c in contexts], dtype=torch.float64)

    def commit(self, path: Sequence[int], token: int) -> None:
        self.text += [*(self.proposal.tokens[i] for i in path), token]


class FakeTarget:
    """A target with the law of a function, float64 and exact."""

    layers = ()

    def __init__(
        self, law: Law, vocab: int, eos: Sequence[int] = (), window: int = 4096, tokenizer: Any = None
    ) -> None:
        self.law, self.vocab_size, self.eos, self.window = law, vocab, frozenset(eos), window
        self.tokenizer = tokenizer or SmallTokenizer()
        self.sessions: list[FakeSession] = []

    def session(self, capacity: int, rows: int) -> FakeSession:
        assert capacity <= self.window
        self.sessions.append(FakeSession(self, rows))
        return self.sessions[-1]


class TableDrafter:
    """Drafts from a law of its own: ``style`` "sample" (a chain), "argmax" (point masses), "tree" (two children per
    node, the second drawn without replacement), or "siblings" (two independent children)."""

    def __init__(self, law: Law, style: str, context: DraftContext) -> None:
        self.law, self.style, self.transform, self.text = law, style, context.transform, list[int]()
        self.level: list[int] = []

    def catch_up(self, verified: Verified) -> Rows | None:
        start = len(self.text)
        self.text += verified.tokens
        if verified.probs is None:
            return None
        return Rows(torch.stack([self.row(self.text[: start + i]) for i in range(len(verified.tokens))]))

    def row(self, context: Sequence[int]) -> torch.Tensor:
        return self.transform(torch.tensor([list(self.law(context))], dtype=torch.float64), [list(context)])[0]

    def propose(self, k: int, rng: Rng) -> Proposal:
        tokens, parents, laws = list[int](), list[int](), list[torch.Tensor]()
        paths: list[list[int]] = [self.text]

        def add(parent: int, law: torch.Tensor, token: int) -> None:
            parents.append(parent)
            laws.append(law)
            tokens.append(token)
            paths.append([*paths[parent + 1], token])

        node = -1
        while len(tokens) < k:
            law = self.row(paths[node + 1])
            first = int(law.argmax()) if self.style == "argmax" else rng.draw(law)
            add(node, law, first)
            if self.style in ("tree", "siblings") and len(tokens) < k:
                rest = law.clone()
                if self.style == "tree":
                    rest[first] = 0
                if float(rest.sum()) > 0:
                    rest = rest / rest.sum()
                    add(node, rest, rng.draw(rest))
            node += 1
        chain = self.style in ("sample", "argmax")
        return Proposal(
            tuple(tokens),
            None if chain else tuple(parents),
            None if self.style == "argmax" or not laws else torch.stack(laws),
        )

    def observe(self, verified: Verified) -> None:
        assert self.style


class Oracle:
    """Proposes a given continuation of the prompt, whatever was committed."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens, self.seen = list(tokens), 0
        self.prompt = True

    def catch_up(self, verified: Verified) -> Rows | None:
        if self.prompt:
            self.prompt = False
        else:
            self.seen += len(verified.tokens)
        return None

    def propose(self, k: int, rng: Rng) -> Proposal:
        return Proposal(tuple(self.tokens[self.seen : self.seen + k]))

    def observe(self, verified: Verified) -> None:
        pass


def arm(name: str, start: Callable[[DraftContext], Any], k: int | None = None) -> Arm:
    return Arm(name, "fake", start, k=k)


def table(vocab: int, seed: int, order: int = 2, scale: float = 1.5) -> Law:
    """A random law over the last ``order`` tokens."""
    logits = np.random.default_rng(seed).normal(scale=scale, size=(vocab,) * (order + 1))
    return lambda context: logits[tuple([0] * (order - len(context)) + [int(t) for t in context[-order:]])].tolist()


def script(text: Sequence[int], vocab: int, prompt: int) -> Law:
    """A law whose greedy continuation of a prompt of ``prompt`` tokens is ``text`` (then token 0 for ever)."""

    def law(context: Sequence[int]) -> list[float]:
        i = len(context) - prompt
        logits = [0.0] * vocab
        logits[text[i] if 0 <= i < len(text) else 0] = 9.0
        return logits

    return law


def pool(target: FakeTarget, *arms: Arm) -> Pool:
    return Pool("fake", target, tuple(arms))


def tokens_of(rounds: Sequence[Round]) -> list[int]:
    return [t for r in rounds for t in r.tokens]


def text_of(rounds: Sequence[Round]) -> str:
    return "".join(piece for r in rounds for piece in r.pieces)


class EveryOutcome:
    """Dice that, run after run, take every branch; ``weight`` is the probability of the present one."""

    def __init__(self) -> None:
        self.plan: list[list[tuple[int, float]]] = []  # open branches of each throw, the current one last
        self.at, self.weight = 0, 1.0

    def runs(self) -> Iterator[None]:
        """One step per branch."""
        while True:
            self.at, self.weight = 0, 1.0
            yield
            while self.plan and len(self.plan[-1]) == 1:
                self.plan.pop()
            if not self.plan:
                return
            self.plan[-1].pop()

    def _throw(self, options: list[tuple[int, float]]) -> int:
        if self.at == len(self.plan):
            self.plan.append([o for o in options if o[1] > 0])
        value, probability = self.plan[self.at][-1]
        self.at += 1
        self.weight *= probability
        return value

    def flip(self, probability: float) -> bool:
        return bool(self._throw([(0, 1 - probability), (1, probability)]))

    def draw(self, weights: torch.Tensor) -> int:
        total = float(weights.sum())
        return self._throw([(i, float(w) / total) for i, w in enumerate(weights)])


def sequences(
    law: Callable[[Sequence[int]], torch.Tensor], prompt: Sequence[int], n: int
) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of ``n`` tokens by plain decoding. ``law``: context -> probabilities."""
    out = {}
    size = len(law(prompt))
    for tokens in product(range(size), repeat=n):
        p, context = 1.0, list(prompt)
        for token in tokens:
            p *= float(law(context)[token])
            context.append(token)
        out[tokens] = p
    return out
