"""Evaluation of selectors: items, order, resuming, conversations, statistics by hand, the command."""

from __future__ import annotations

import csv
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specdemo.cli import main
from specdemo.engine import generate
from specdemo.evaluation import agreement, harness, paired
from specdemo.evaluation.prompts import Prompt, read_prompts
from specdemo.store import Store
from specdemo.types import Message, Pool, Request
from tests.fakes import ByteTokenizer, FakeTarget, TableDrafter, arm, table

PROMPTS = [Prompt("a", "code", ("x",)), Prompt("b", "sql", ("y", "z"))]
REQUESTS = {
    "none": Request(prompt="", selector="none", max_new_tokens=12, k=3),
    "first": Request(prompt="", selector="fixed", max_new_tokens=12, k=3, shadow=True),
    "full": Request(prompt="", selector="hedgespec", max_new_tokens=12, k=3),
}


def made() -> Pool:
    law = table(256, 0, order=1)
    arms = (
        arm("d", lambda c: TableDrafter(law, "sample", c)),
        arm("e", lambda c: TableDrafter(table(256, 1, 1), "sample", c)),
    )
    return Pool("fake", FakeTarget(law, 256, tokenizer=ByteTokenizer()), arms)


def test_items_are_interleaved_and_their_ids_are_stable() -> None:
    items = harness.make_items(made(), PROMPTS, REQUESTS, [0, 1])
    assert [(i.prompt.id, i.request.seed) for i in items[::3]] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert [i.selector for i in items[:6]] == ["none", "first", "full", "first", "full", "none"]
    assert len({i.id for i in items}) == 12
    again = harness.make_items(made(), PROMPTS[1:], {"first": REQUESTS["first"]}, [1])
    assert [i.id for i in again] == [
        i.id for i in items if (i.prompt.id, i.selector, i.request.seed) == ("b", "first", 1)
    ]
    other = harness.make_items(made(), PROMPTS, {"first": replace(REQUESTS["first"], k=2)}, [1])
    assert not {i.id for i in other} & {i.id for i in items}


def test_a_killed_evaluation_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = made()
    items = harness.make_items(pool, PROMPTS, REQUESTS, [0])
    ran: list[Request] = []

    def dying(request: Request, pool: Pool):
        if len(ran) == 3 + 4:  # three warm-ups, then the second turn of the second prompt's first selector is next
            raise KeyboardInterrupt
        ran.append(request)
        return generate(request, pool)

    monkeypatch.setattr(harness, "generate", dying)
    with closing(Store(tmp_path / "runs.db")) as store, pytest.raises(KeyboardInterrupt):
        harness.run(pool, items, store, {})
    assert [r.max_new_tokens for r in ran[:3]] == [harness.WARM_UP] * 3
    ran.clear()
    monkeypatch.setattr(harness, "generate", lambda request, pool: (ran.append(request), generate(request, pool))[1])
    with closing(Store(tmp_path / "runs.db")) as store:
        rows = harness.run(pool, items, store, {})
        measured = [r for r in ran if r.max_new_tokens == 12]
        assert len(measured) == 6  # the second prompt's three conversations, from their beginning
        ran.clear()
        assert harness.run(pool, items, store, {}) == rows
        assert not ran
        stored = store.list_runs()
    assert [row["item"] for row in rows] == [i.id for i in items]
    assert len(stored) == 3 + 6 + 2  # and the interrupted conversation
    by = {(row["prompt"], row["selector"]): row for row in rows}
    assert by["b", "none"]["tokens"] == by["b", "none"]["rounds"] == 24
    assert by["b", "full"]["tokens"] == 24
    assert by["b", "none"]["regret"] is None
    assert by["a", "first"]["regret"] == pytest.approx(0, abs=1e-6)  # d is the target itself: nobody is better
    assert all(row["ms"] > 0 for row in rows)


def test_a_turn_sees_the_answer_before_it(tmp_path: Path) -> None:
    pool = made()
    item = harness.make_items(pool, PROMPTS[1:], {"none": REQUESTS["none"]}, [0])[0]
    with closing(Store(tmp_path / "runs.db")) as store:
        harness.run_item(pool, item, store, {})
        first, second = (store.load_run(run["id"]) for run in reversed(store.list_runs()))
    assert first is not None
    assert second is not None
    assert first.summary is not None
    assert first.request.messages == (Message("user", "y"),)
    assert second.request.messages == (
        Message("user", "y"),
        Message("assistant", first.summary["text"]),
        Message("user", "z"),
    )


def test_prompt_files_of_others(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    rows = [{"question_id": 81, "category": "writing", "turns": ["one", "two"]}, {"prompt": "three"},
            {"id": "c", "domain": "sql", "prompt": "four"}]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    assert read_prompts(file) == [
        Prompt("81", "writing", ("one", "two")), Prompt("question-2", "question", ("three",)),
        Prompt("c", "sql", ("four",)),
    ]  # fmt: skip
    for bad in ('{"turns": []}', '{"prompt": 3}', "{}", "[]", "x"):
        file.write_text(bad)
        with pytest.raises((ValueError, KeyError, TypeError)):
            read_prompts(file)


def row(selector: str, prompt: str, domain: str, seed: int, tokens: int, rounds: int, ms: float, regret=None) -> dict:
    return {"item": "", "prompt": prompt, "domain": domain, "selector": selector, "seed": seed, "tokens": tokens,
            "rounds": rounds, "ms": ms, "switches": 2, "regret": regret}  # fmt: skip


ROWS = [
    row("plain", "1", "code", 0, 100, 100, 1000.0), row("plain", "2", "code", 0, 100, 100, 1000.0),
    row("plain", "3", "sql", 0, 100, 100, 2000.0),
    row("fast", "1", "code", 0, 100, 40, 500.0, 4.0), row("fast", "1", "code", 1, 100, 60, 300.0, 2.0),
    row("fast", "2", "code", 0, 100, 25, 250.0, 1.0), row("fast", "3", "sql", 0, 90, 30, 900.0, -1.0),
    row("fast", "4", "sql", 0, 10, 10, 100.0, 0.0),
]  # fmt: skip


def test_paired_statistics_by_hand() -> None:
    records = {(r["selector"], r["domain"]): r for r in paired.compare(ROWS, "plain")}
    code = records["fast", "code"]  # prompt 1, both seeds: 200 tokens, 100 rounds, 800 ms; prompt 2: 4 a round, 400/s
    assert (code["prompts"], code["length"], code["speed"]) == (2, 3.0, 325.0)
    assert (code["rounds"], code["switches"], code["regret"]) == (37.5, 2, 2.0)
    assert (code["speed_ratio"], code["length_ratio"]) == (pytest.approx((2.5 + 4) / 2), 3.0)
    assert (code["speed_low"], code["speed_high"]) == (2.5, 4.0)
    sql = records["fast", "sql"]  # prompt 4 has no partner: it is in the medians, but in no ratio
    assert (sql["prompts"], sql["speed"], sql["speed_ratio"], sql["length_ratio"]) == (2, 100.0, 2.0, 3.0)
    every = records["fast", "all"]
    assert (every["prompts"], every["speed_ratio"]) == (4, 2.5)
    assert records["plain", "all"]["speed_ratio"] is None
    assert records["plain", "all"]["regret"] is None


def test_table_as_text_and_csv() -> None:
    records = paired.compare(ROWS, "plain")
    lines = paired.as_text(records).splitlines()
    heading = "selector domain prompts tokens/round tokens/s rounds switches regret length ratio speed ratio"
    assert lines[0].split() == heading.split()
    assert "2.500 (2.000-4.000)" in next(line for line in lines if line.startswith("fast") and " all " in line)
    back = list(csv.DictReader(paired.as_csv(records).splitlines()))
    assert [float(r["speed"]) for r in back] == [r["speed"] for r in records]
    assert paired.as_csv([]) == "\n"


def test_evaluate_selectors_from_the_command_line(tmp_path: Path, tiny_model: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    pool, prompts = tmp_path / "mine.toml", tmp_path / "prompts.jsonl"
    pool.write_text(
        '[target]\nsource = "embedded"\n[[arms]]\nname = "copy"\nfamily = "prompt-lookup"\n'
        '[[arms]]\nname = "self"\nfamily = "causal_lm"\n'
    )
    prompts.write_text(
        "".join(json.dumps({"id": i, "domain": d, "prompt": f"w5 w{i}"}) + "\n" for i, d in ((6, "a"), (7, "b")))
    )
    command = ["evaluate", "selectors", "--pool", str(pool), "--prompts", str(prompts)]
    command += ["--k", "3", "--max-new-tokens", "8"]
    command += ["--selectors", "none,fixed:arm=self,hedgespec:choice=argmax", "--shadow", "--dtype", "float32"]
    command += ["--out", str(tmp_path / "out"), "--db", str(tmp_path / "runs.db"), "--json"]
    assert main(command) == 0
    records = {(r["selector"], r["domain"]): r for r in json.loads(capsys.readouterr().out)}
    assert (
        records["fixed:arm=self", "all"]["length_ratio"] == 4.0
    )  # the target agrees with itself: 8 tokens in 2 rounds
    assert records["fixed:arm=self", "all"]["regret"] == pytest.approx(0)
    assert records["none", "a"]["regret"] == pytest.approx(6)
    assert records["hedgespec:choice=argmax", "b"]["prompts"] == 1
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["rows.json", "table.csv", "table.json", "table.txt"]
    for wrong in (
        ["--selectors", "nobody"],
        ["--baseline", "fixed"],
        ["--selectors", "fixed:arm=x"],
        ["--prompts", str(pool)],
    ):
        assert main([*command, *wrong]) == 2


def test_estimates_beside_reruns_by_hand(tmp_path: Path) -> None:
    """d is the target itself: four tokens a round, estimated and real; and the table says how sure that is."""
    pool = made()
    prompts = [Prompt(str(i), "x", (f"w{i}",)) for i in range(3)]
    wanted = agreement.requests(replace(REQUESTS["none"], max_new_tokens=14), ["d", "e"])
    items = harness.make_items(pool, prompts, wanted, [0, 1])
    assert len(items) == 18
    with closing(Store(tmp_path / "runs.db")) as store:
        harness.run(pool, items, store, {})
        records = {r["arm"]: r for r in agreement.agreement(items, store)}
        assert store.load_item("nothing") is None
    assert list(records) == ["d", "e"]
    d = records["d"]
    assert (d["answers"], d["real"]) == (6, 4)
    assert [d[name] for name in ("uncalibrated", "own", "calibrated")] == pytest.approx([4, 4, 4])
    assert (d["difference"], d["low"], d["high"]) == pytest.approx((0, 0, 0))
    e = records["e"]
    assert e["low"] < e["difference"] < e["high"] or e["real"] == e["calibrated"] == 14
    assert "| d | 6 | 4.00 |" in agreement.markdown(list(records.values()))
    only = agreement._record("x", np.array([[10.0, 9, 9.5, 11], [20, 18, 19, 19]]))
    assert (only["real"], only["calibrated"], only["difference"]) == (15, 15, 0)
    assert only["high"] == pytest.approx(2.576)  # differences +1 and -1: deviation sqrt(2), over sqrt(2)
