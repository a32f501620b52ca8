"""The target writes what heads learn from: answers to training prompts, half of them greedy, half sampled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from specdemo.target import HFTarget
from specdemo.training.prompts import write_prompts
from specdemo.types import Message, Request

TOKENS = 200  # of an answer, at most
TEMPERATURE = 0.8


def distil(
    domain: str,
    count: int,
    target: HFTarget,
    folder: Path,
    prompts: Sequence[str] | None = None,
    batch: int = 32,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write ``<domain>.jsonl`` in ``folder``: rows ``{"prompt", "gen", "sample"}``; goes on where the file ends.

    Args:
        count: prompts. ``prompts``: these instead of those of the templates (prompts.py).
        batch: answers written at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{domain}.jsonl"
    done = len(path.read_text("utf-8").splitlines()) if path.exists() else 0
    asked = list(prompts[:count] if prompts is not None else write_prompts(domain, count, seed))
    with (
        path.open("a", encoding="utf-8") as file,
        tqdm(total=len(asked), initial=done, unit="answer", desc=domain, disable=not progress) as bar,
    ):
        for number, group in _groups(asked, done, batch):
            sample = number % 2 == 1
            for prompt, gen in zip(group, _write(group, target, sample, seed + number), strict=True):
                print(json.dumps({"prompt": prompt, "gen": gen, "sample": sample}), file=file)
            file.flush()
            bar.update(len(group))
    return path


def _groups(prompts: list[str], done: int, batch: int) -> Iterator[tuple[int, list[str]]]:
    """What is left, in groups that fall where they would have fallen without an interruption."""
    for start in range(done - done % batch, len(prompts), batch):
        group = prompts[max(start, done) : start + batch]
        if group:
            yield start // batch, group


@torch.no_grad()
def _write(prompts: list[str], target: HFTarget, sample: bool, seed: int) -> list[list[int]]:
    """Answers of the prompts, by the model's own ``generate``, padded on the left."""
    torch.manual_seed(seed)
    ids = [target.tokenizer.encode(Request(messages=(Message("user", prompt),))) for prompt in prompts]
    width, pad = max(map(len, ids)), min(target.eos or {0})
    inputs = torch.tensor([[pad] * (width - len(row)) + row for row in ids], device=target.device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids], device=target.device)
    with target.untouched() as model:
        out = model.generate(
            inputs,
            attention_mask=mask,
            max_new_tokens=TOKENS,
            do_sample=sample,
            temperature=TEMPERATURE if sample else None,
            top_k=0 if sample else None,
            top_p=1.0 if sample else None,
            pad_token_id=pad,
        )
    return [_until_end(row, target.eos) for row in out[:, width:].tolist()]


def _until_end(tokens: list[int], eos: frozenset[int]) -> list[int]:
    """The tokens up to the first end token, which is the last."""
    end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
    return tokens[:end]
