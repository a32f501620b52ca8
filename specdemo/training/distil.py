"""The target writes what heads learn from: two answers to every training prompt, one greedy, one sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from specdemo.jsonl import whole_lines
from specdemo.target import HFTarget
from specdemo.training.prompts import write_prompts
from specdemo.training.writer import Task, Writer
from specdemo.types import Message, Request

TOKENS = 200  # of an answer, at most
TEMPERATURE = 0.8
LONGEST = 640  # tokens of prompt and answer; longer prompts are left out


def distil(
    domain: str,
    count: int,
    target: HFTarget,
    folder: Path,
    prompts: Sequence[str] | None = None,
    batch: int = 64,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Write ``<domain>.jsonl`` in ``folder``: rows ``{"prompt", "gen", "sample"}`` as answers are complete; what the
    file has is not answered again.

    Args:
        count: prompts. ``prompts``: these instead of those of the templates (prompts.py).
        batch: answers written at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{domain}.jsonl"
    done = {(row["prompt"], row["sample"]) for row in whole_lines(path)}
    asked = list(prompts[:count] if prompts is not None else write_prompts(domain, count, seed))
    wanted = [(i, prompt, sample) for i, prompt in enumerate(asked) for sample in (False, True)]
    missing = [(i, prompt, sample) for i, prompt, sample in wanted if (prompt, sample) not in done]
    # an answer depends on its prompt's number, not on what is written beside it
    tasks = [Task(_tokens(target, prompt), TEMPERATURE * sample, seed + i) for i, prompt, sample in missing]
    with (
        path.open("a", encoding="utf-8") as file,
        tqdm(
            total=len(wanted), initial=len(wanted) - len(missing), unit="answer", desc=domain, disable=not progress
        ) as bar,
    ):
        size = min(LONGEST, max((len(task.prompt) for task in tasks), default=0) + TOKENS)
        for number, answer in Writer(target, min(batch, max(1, len(tasks))), size, TOKENS).write(tasks):
            _, prompt, sample = missing[number]
            print(json.dumps({"prompt": prompt, "gen": answer, "sample": sample}), file=file, flush=True)
            bar.update()
    return path


def _tokens(target: HFTarget, prompt: str) -> tuple[int, ...]:
    return tuple(target.tokenizer.encode(Request(messages=(Message("user", prompt),))))
