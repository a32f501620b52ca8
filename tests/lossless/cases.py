"""What the exactness tests on the embedded model share: prompts, pools, and the external baseline."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache, lru_cache

import torch
from transformers import AutoModelForCausalLM

from specdemo.drafters import DRAFTERS
from specdemo.engine import generate
from specdemo.models import embedded_model, shipped
from specdemo.target import HFTarget
from specdemo.types import Arm, Message, Pool, Request, Round

DRAFTER_OPTIONS = {
    "prompt-lookup": ("prompt-lookup", {}),
    "suffix": ("suffix", {}),
    "suffix-session": ("suffix", {"memory": True}),
    "self-draft": ("causal_lm", {"model": "target"}),
    "all-round": ("eagle", {"model": str(shipped("assets") / "team"), "member": "all-round"}),
    "sql": ("eagle", {"model": str(shipped("assets") / "team"), "member": "sql"}),
    "hydra": ("hydra", {"model": str(shipped("assets") / "hydra")}),
}
TREES = {"all-round-tree": ("eagle", {"model": str(shipped("assets") / "team"), "member": "all-round", "nodes": 16})}


@lru_cache
def prompts() -> list[str]:
    """Twenty of the example prompts, all domains in turn."""
    rows = [json.loads(line) for line in (shipped("data") / "examples.jsonl").read_text("utf-8").splitlines()]
    by_domain: dict[str, list[str]] = {}
    for row in rows:
        by_domain.setdefault(row["domain"], []).append(row["prompt"])
    turns = max(map(len, by_domain.values()))
    return [group[i] for i in range(turns) for group in by_domain.values() if i < len(group)][:20]


COMPILE = [False]  # set before the first target is loaded


@lru_cache
def target(dtype: str) -> HFTarget:
    return HFTarget.load(str(embedded_model()), dtype=dtype, compile=COMPILE[0])


@lru_cache
def pool(dtype: str, trees: bool = False) -> Pool:
    """All drafters of chains, or all of trees: one tree makes every forward of its pool larger."""
    model, chosen = target(dtype), TREES if trees else DRAFTER_OPTIONS
    arms = [
        Arm(n, f, DRAFTERS[f].load(model, **options), nodes=options.get("nodes", 0))
        for n, (f, options) in chosen.items()
    ]
    return Pool("exactness", model, tuple(arms))


def request(prompt: str, k: int, tokens: int, selector: str = "none", **options: object) -> Request:
    return Request(messages=(Message("user", prompt),), k=k, max_new_tokens=tokens, selector=selector, options=options)


def tokens(rounds: list[Round]) -> list[int]:
    return [t for r in rounds for t in r.tokens]


def run(dtype: str, wanted: Request, trees: bool = False) -> list[int]:
    return tokens(list(generate(wanted, pool(dtype, trees or wanted.options.get("arm") in TREES))))


@lru_cache
def reference(dtype: str):
    return AutoModelForCausalLM.from_pretrained(embedded_model(), dtype=getattr(torch, dtype)).eval()


@cache
def transformers_tokens(dtype: str, prompt: str, n: int) -> tuple[int, ...]:
    """Greedy continuation by ``transformers.generate`` on a model of its own."""
    ids = target(dtype).tokenizer.encode(request(prompt, 0, n))
    inputs = torch.tensor([ids])
    with torch.no_grad():
        out = reference(dtype).generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=n, do_sample=False
        )
    return tuple(out[0, len(ids) :].tolist())


@cache
def plain_tokens(dtype: str, prompt: str, n: int, k: int, trees: bool = False) -> tuple[int, ...]:
    """The engine's own plain decoding through the rows of draft length ``k``, or of the trees."""
    return tuple(run(dtype, request(prompt, k, n), trees))


def with_memory(wanted: Request, answer: tuple[int, ...]) -> Request:
    return replace(wanted, memory=(answer,))
