"""Every drafter of a pool on every prompt: resumable, one line of JSON per drafter and prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from specdemo.evaluation.prompts import Prompt
from specdemo.evaluation.replay import answers, features, replay, to_dict
from specdemo.jsonl import whole_lines
from specdemo.target import HFTarget
from specdemo.types import Pool


def first_of_each(prompts: Sequence[Prompt], count: int | None) -> list[Prompt]:
    """The first ``count`` prompts of each domain; all if it is None."""
    seen: dict[str, int] = {}
    kept = []
    for p in prompts:
        seen[p.domain] = seen.get(p.domain, 0) + 1
        if count is None or seen[p.domain] <= count:
            kept.append(p)
    return kept


def evaluate(
    pool: Pool, prompts: Sequence[Prompt], arms: Sequence[str] | None, k: int, tokens: int, folder: Path
) -> list[dict[str, Any]]:
    """Replays of the named arms (None: all) on the target's answers of at most ``tokens`` tokens.

    ``folder`` keeps answers and replays; what is there is not measured again, so a killed run goes on where it was.
    Answers depend on the target only, replays on the arms, too: after training an arm again, measure in a new folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, target = folder / "replays.jsonl", cast("HFTarget", pool.target)
    rows = whole_lines(path)
    done = {(row["id"], row["arm"], row["k"]) for row in rows}
    chosen = [arm for arm in pool.arms if arms is None or arm.name in arms]
    fastest = next((arm.name for arm in chosen if target.layers), "")
    written = answers(prompts, pool, tokens, folder / "answers.jsonl", fastest)
    with path.open("a", encoding="utf-8") as file:
        for answer in tqdm(written, total=len(prompts), unit="prompt", desc="evaluate"):
            missing = [arm for arm in chosen if (answer.id, arm.name, min(k, arm.k or k)) not in done]
            read = features(target, answer) if missing and answer.tokens else None
            for arm in missing if answer.tokens else ():
                rows.append(to_dict(replay(arm, target, answer, read, k)))
                print(json.dumps(rows[-1]), file=file, flush=True)
    wanted = {p.id for p in prompts}
    return [row for row in rows if row["id"] in wanted and row["arm"] in {arm.name for arm in chosen}]
