"""Between the records of ``types.py`` and the database's rows, both ways, exactly.

Text columns hold UTF-8, so a lone surrogate becomes U+FFFD there; JSON columns are ASCII and keep every string.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from typing import Any

from specdemo.metrics import RunSummary
from specdemo.types import Evaluated, Message, Request, Round, Sampling, Snapshot, Start

Row = Mapping[str, Any]
_SAME = (
    "arm",
    "k",
    "drafted",
    "accepted",
    "finish",
    "draft_ms",
    "verify_ms",
    "feedback_ms",
    "learn_ms",
    "other_ms",
    "at_ms",
    "shadow_ms",
)
_JSON = ("draft", "draft_p", "draft_q", "path")


@dataclass(slots=True)
class Change:
    """What one event writes: rows per table, then statements. Rows never depend on statements, so the rows of many
    events can go first, table by table."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    statements: list[tuple[str, Sequence[Any]]] = field(default_factory=list)


def dumps(value: Any) -> str:
    """JSON in ASCII. Records and mappings become objects; what JSON does not know becomes its text."""
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return dict(value) if isinstance(value, Mapping) else str(value)


def clean(text: str | None) -> str | None:
    """The text as UTF-8 can hold it."""
    return None if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# ------------------------------------------------------------------------------------------------------ records to rows


def run_row(request: Request, pool: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of ``runs`` that are known before the run. ``info`` is :func:`specdemo.provenance.provenance`'s."""
    messages = request.messages
    return {
        "pool": clean(pool),
        "pool_hash": info.get("pool_hash"),
        "selector": clean(request.selector),
        "k": request.k,
        "max_new_tokens": request.max_new_tokens,
        "temperature": float(request.sampling.temperature),
        "seed": request.seed,
        "prompt": clean(messages[-1].content if messages else request.prompt),
        "request": dumps(request),
        **{name: info.get(name) for name in ("version", "git", "device", "dtype", "threads")},
        "provenance": dumps(info),
    }


def summary_columns(summary: RunSummary) -> dict[str, Any]:
    """The columns of ``runs`` that are known after the run."""
    return {
        "text": clean(summary.text),
        "tokens": len(summary.token_ids),
        "rounds": summary.num_spec_steps,
        "mean_acceptance_length": summary.mean_acceptance_length,
        "tokens_per_second": summary.tokens_per_second,
        "finish_reason": summary.finish_reason,
        "summary": dumps(summary),
    }


def round_change(run: str, r: Round, tokens: int, pieces: int, start: Start | None) -> Change:
    """Everything that a round writes, after ``tokens`` tokens and ``pieces`` final pieces of earlier rounds."""
    late = range(pieces, min(tokens, pieces + len(r.pieces)))  # tokens of earlier rounds whose text is final only now
    update = "UPDATE tokens SET piece = ? WHERE run_id = ? AND token = ?"
    return Change(
        {
            "rounds": [_round_row(run, r)],
            "arms": list(_arm_rows(run, r, start)),
            "tokens": list(_token_rows(run, r, tokens, pieces, start)),
        },
        [(update, (clean(r.pieces[i - pieces]), run, i)) for i in late],
    )


def _round_row(run: str, r: Round) -> Row:
    return {
        "run_id": run,
        "round": r.index,
        **{name: getattr(r, name) for name in _SAME},
        "pieces": len(r.pieces),
        **{name: dumps(getattr(r, name)) for name in _JSON},
        "parents": None if r.parents is None else dumps(r.parents),
        "kind": r.snapshot.kind,
        "start": None if r.start is None else dumps(r.start),
        "realised": dumps(r.realised) if r.realised else None,
        "evaluated": None if r.evaluated is None else dumps(r.evaluated),
    }


def _arm_rows(run: str, r: Round, start: Start | None) -> Iterable[Row]:
    s = r.snapshot
    for arm, (value, estimate, loss) in enumerate(zip(s.value, s.estimate, s.loss, strict=True)):
        row = {"run_id": run, "round": r.index, "arm": arm, "name": start.arms[arm] if start else None, "kind": s.kind}
        yield {**row, "value": value, "estimate": estimate, "loss": loss}


def _token_rows(run: str, r: Round, tokens: int, pieces: int, start: Start | None) -> Iterable[Row]:
    for position, (token, p) in enumerate(zip(r.tokens, r.p, strict=True)):
        piece, drafted = tokens + position - pieces, position < r.accepted
        yield {
            "run_id": run,
            "token": tokens + position,
            "id": token,
            "piece": clean(r.pieces[piece]) if 0 <= piece < len(r.pieces) else None,
            "arm": r.arm if drafted else None,
            "drafter": start.drafters[r.arm] if drafted and start else None,
            "round": r.index,
            "position": position,
            "p": p,
            "q": r.draft_q[r.path[position]] if drafted else None,
        }


# ------------------------------------------------------------------------------------------------------ rows to records


def request_from(text: str) -> Request:
    """A request from its JSON; fields that this version does not know are left out."""
    d = {name: value for name, value in json.loads(text).items() if name in {f.name for f in fields(Request)}}
    return Request(
        **{
            **d,
            "messages": tuple(Message(**m) for m in d["messages"]),
            "sampling": Sampling(**d["sampling"]),
            "stop": tuple(d["stop"]),
            "memory": tuple(tuple(tokens) for tokens in d["memory"]),
        }
    )


def rounds_from(rounds: Iterable[Row], arms: Iterable[Row], tokens: Iterable[Row]) -> list[Round]:
    """Rounds from their rows, all in order: up to the first that is missing."""
    by_round: dict[int, list[Row]] = {}
    for row in tokens:
        by_round.setdefault(row["round"], []).append(row)
    values: dict[int, list[Row]] = {}
    for row in arms:
        values.setdefault(row["round"], []).append(row)
    pieces = (row["piece"] for block in by_round.values() for row in block)
    rebuilt: list[Round] = []
    for row in rounds:
        index = row["round"]
        if index != len(rebuilt):
            break
        rebuilt.append(
            _round(row, values.get(index, []), by_round.get(index, []), tuple(islice(pieces, row["pieces"])))
        )
    return rebuilt


def _round(row: Row, arms: Sequence[Row], tokens: Sequence[Row], pieces: tuple[str, ...]) -> Round:
    plain: dict[str, Any] = {name: row[name] for name in _SAME if name in row}  # an older file has fewer
    lists: dict[str, Any] = {name: tuple(json.loads(row[name])) for name in _JSON}
    return Round(
        index=row["round"],
        **plain,
        **lists,
        parents=_tuple(row["parents"]),
        tokens=tuple(t["id"] for t in tokens),
        p=tuple(t["p"] for t in tokens),
        pieces=pieces,
        snapshot=Snapshot(row["kind"], *(tuple(a[name] for a in arms) for name in ("value", "estimate", "loss"))),
        start=_start(row["start"]),
        realised=tuple(json.loads(row.get("realised") or "[]")),
        evaluated=_evaluated(row.get("evaluated")),
    )


def _tuple(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(json.loads(text))


def _start(text: str | None) -> Start | None:
    if text is None:
        return None
    return Start(**_with_tuples(text))


def _evaluated(text: str | None) -> Evaluated | None:
    if text is None:
        return None
    return Evaluated(**{name: tuple(map(tuple, matrix)) for name, matrix in json.loads(text).items()})


def _with_tuples(text: str) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(text).items()}
