"""What was measured, written down: a heat map for the documentation, numbers for the page, a card for every head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdemo.evaluation import table
from specdemo.evaluation.table import Row
from specdemo.pools import PoolFile

SHARED = {"hydra": "heads.safetensors", "eagle": "head.safetensors"}


def publish(root: Path, file: PoolFile, rows: Sequence[Row], k: int, verify_ms: float | None) -> list[Path]:
    """Write ``docs/results/<pool>.md``, ``assets/strengths/<pool>.json`` and the cards of the pool's heads.

    Args:
        root: of the repository.
        verify_ms: median time of a target forward on the machine that measured; None leaves speeds out.
    """
    note = f"Mean acceptance length (tokens per round), greedy, K = {k}, {_prompts(rows)} held-out prompts."
    lengths = table.heat_map(rows, table.lengths)
    rounded = {arm: {domain: round(x, 3) for domain, x in row.items()} for arm, row in lengths.items()}
    written = [
        _write(
            root / "assets" / "strengths" / f"{file.name}.json", json.dumps({"note": note, "length": rounded}, indent=1)
        ),
        _write(root / "docs" / "results" / f"{file.name}.md", results(file, rows, note, verify_ms)),
    ]
    for arm in file.arms:
        model = str(arm.options.get("model", ""))
        if model.startswith("assets/"):
            folder = root / model
            member = str(arm.options.get("member", ""))
            text = card(
                arm.name, arm.domain, arm.family, folder, member, [r for r in rows if r["arm"] == arm.name], note
            )
            written.append(_write(folder / f"{member or arm.name}.md", text))
    return written


def results(file: PoolFile, rows: Sequence[Row], note: str, verify_ms: float | None) -> str:
    """The heat maps as a page."""
    parts = [
        f"# Drafters of the pool `{file.name}`, domain by domain\n",
        note + " The best of each column is bold; `all` is the mean of the domains.\n",
        table.markdown(table.heat_map(rows, table.lengths)),
        "\nShare of positions at which the first drafted token is the target's:\n",
        table.markdown(table.heat_map(rows, table.agreement)),
    ]
    if verify_ms is not None:
        parts += [
            f"\nTokens per second if a round costs one target forward ({verify_ms:.1f} ms, the median measured on this "
            "machine) and the drafting time that was measured beside it:\n",
            table.markdown(table.heat_map(rows, lambda group: table.speed(group, verify_ms)), 1),
        ]
    return "\n".join(parts) + "\n"


def card(name: str, about: str, family: str, folder: Path, member: str, rows: Sequence[Row], note: str) -> str:
    """A head's model card."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    entry: Mapping[str, Any] = config["members"][member] if member else config
    files = [SHARED[family], *([f"{member}.safetensors"] if member else [])]
    sizes = ", ".join(f"`{f}` {(folder / f).stat().st_size / 1e6:.1f} MB" for f in files)
    trained = entry.get("trained", {})
    lengths = table.heat_map(rows, table.lengths)
    lines = [
        f"# {name}\n",
        f"Draft head ({family}) for SmolLM2-135M-Instruct: {about}. Licence: Apache-2.0, as the target's.\n",
        f"Files: {sizes} (matrices int8; no LM head of its own: it reads rows of the target's).",
        f"Rank of the delta: {entry['rank']}.\n" if entry.get("rank") else "",
        _training(trained),
        *([str(trained["data"])] if "data" in trained else []),
        f"\n{note}\n",
        table.markdown(lengths),
        "\nAcceptance by position, all domains: "
        + ", ".join(f"{share:.2f}" for share in table.by_position(rows))
        + ".\n\nIt drafts only for the model it was trained on, and only as well as its texts resemble yours.",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _training(trained: Mapping[str, Any]) -> str:
    told = {key: trained.get(key, "?") for key in ("texts", "tokens", "positions", "steps", "lr")}
    domains = ", ".join(trained.get("domains", ["?"]))
    return (
        f"Trained on answers of the target to prompts of the domains {domains}: "
        "{texts} texts of {tokens} tokens in all, {positions} positions seen, {steps} unrolled steps, peak learning "
        "rate {lr}.".format(**told)
    )


def _prompts(rows: Sequence[Row]) -> int:
    return len({r["id"] for r in rows})


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path
