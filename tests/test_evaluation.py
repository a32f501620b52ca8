"""Replays summed up: hand-computed tables, and the command that makes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specdemo.cli import main
from specdemo.evaluation import table
from specdemo.evaluation.publish import publish
from specdemo.evaluation.replay import agreeing
from specdemo.pools import read_pool
from specdemo.types import Proposal


def row(arm: str, id: str, domain: str, accepted: list[int], drafted: list[int], ms: float = 10.0, agrees: float = 0.5):
    tokens = sum(accepted) + len(accepted)
    return {
        "id": id, "domain": domain, "arm": arm, "k": 3, "rounds": len(accepted), "tokens": tokens, "accepted": accepted,
        "drafted": drafted, "draft_ms": ms, "agreement": agrees, "length": tokens / len(accepted),
    }  # fmt: skip


ROWS = [
    row("a", "1", "code", [3, 1], [3, 3], agrees=0.5),
    row("a", "2", "code", [0], [3], agrees=0.0),
    row("a", "3", "sql", [1, 1], [3, 1]),
    row("b", "1", "code", [1, 1, 1], [3, 3, 3]),
    row("b", "2", "code", [0], [0]),
    row("b", "3", "sql", [3], [3]),
]


def test_heat_map_by_hand() -> None:
    found = table.heat_map(ROWS, table.lengths)
    assert found["a"] == {"code": 7 / 3, "sql": 2.0, "all": pytest.approx((7 / 3 + 2) / 2)}
    assert found["b"] == {"code": 7 / 4, "sql": 4.0, "all": pytest.approx((7 / 4 + 4) / 2)}
    assert table.agreement(ROWS[:2]) == pytest.approx(0.5 * 6 / 7)
    assert table.by_position(ROWS[:3]) == [4 / 5, 1 / 4, 1 / 4]
    assert table.speed(ROWS[:2], 40.0) == pytest.approx(1000 * 7 / (3 * 40 + 20))


def test_ratio_is_paired_and_has_an_interval() -> None:
    middle, low, high = table.ratio(ROWS, "a", "b", "code", table.lengths)
    assert middle == pytest.approx((7 / 3) / (7 / 4))
    assert low <= middle <= high
    assert low < high


def test_markdown_marks_the_best() -> None:
    text = table.markdown(table.heat_map(ROWS, table.lengths))
    assert "| a | **2.33** | 2.00 | 2.17 |" in text
    assert "| b | 1.75 | **4.00** | **2.88** |" in text


@pytest.mark.parametrize(
    ("proposal", "text", "kept"),
    [
        (Proposal((5, 6, 7)), (5, 6, 8, 9), 2),
        (Proposal((5, 6, 7)), (5, 6, 7), 2),  # the last token of a text is the target's own
        (Proposal(()), (5,), 0),
        (Proposal((1, 5, 2, 6), (-1, -1, 0, 1)), (5, 6, 7), 2),
        (Proposal((1, 5, 6), (-1, -1, 0)), (5, 6, 7), 1),
    ],
)
def test_what_greedy_verification_keeps(proposal: Proposal, text: tuple[int, ...], kept: int) -> None:
    assert agreeing(proposal, text) == kept


def test_evaluate_from_the_command_line(tmp_path: Path, tiny_model: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    pool = tmp_path / "mine.toml"
    pool.write_text(
        '[target]\nsource = "embedded"\n[[arms]]\nname = "copy"\nfamily = "prompt-lookup"\ndomain = "copies"\n'
        '[[arms]]\nname = "self"\nfamily = "causal_lm"\n'
    )
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": f"{d}-{i}", "domain": d, "prompt": f"w5 w{6 + i} w5"} for d in ("code", "sql") for i in range(3)]
    prompts.write_text("".join(json.dumps(r) + "\n" for r in rows))
    command = [
        "evaluate",
        "drafters",
        "--pool",
        str(pool),
        "--prompts",
        str(prompts),
        "--k",
        "3",
        "--max-new-tokens",
        "12",
    ]
    command += ["--per-domain", "2", "--dtype", "float32", "--out", str(tmp_path / "out"), "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["length"]["self"]["all"] == pytest.approx(4.0)  # the target agrees with itself: K + 1 tokens a round
    assert found["agreement"]["self"]["code"] == 1.0
    kept = (tmp_path / "out" / "replays.jsonl").read_text()
    assert len(kept.splitlines()) == 8
    assert main(command) == 0  # nothing is measured again
    assert (tmp_path / "out" / "replays.jsonl").read_text() == kept
    for name in ("answers.jsonl", "replays.jsonl"):  # killed in the middle of a line
        file = tmp_path / "out" / name
        file.write_text(file.read_text()[:-20])
    assert main(command) == 0
    again = (tmp_path / "out" / "replays.jsonl").read_text().splitlines()
    assert [row["id"] for row in map(json.loads, again)] == [row["id"] for row in map(json.loads, kept.splitlines())]
    assert main([*command, "--arm", "nobody"]) == 2
    assert (
        main(["evaluate", "drafters", "--pool", str(pool), "--prompts", str(pool), "--out", str(tmp_path / "x")]) == 2
    )


def test_what_is_published(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[target]\nsource = "embedded"\n[[arms]]\nname = "a"\nfamily = "eagle"\ndomain = "SQL"\n'
        'options = { model = "assets/team", member = "a" }\n[[arms]]\nname = "b"\nfamily = "suffix"\n'
    )
    team = tmp_path / "assets" / "team"
    team.mkdir(parents=True)
    for name in ("head.safetensors", "a.safetensors"):
        (team / name).write_bytes(b"x" * 2_000_000)
    trained = {"domains": ["sql"], "texts": 7, "tokens": 99, "positions": 5, "steps": 3, "lr": 0.1}
    (team / "config.json").write_text(json.dumps({"members": {"a": {"rank": 32, "trained": trained}}}))
    written = publish(tmp_path, read_pool(file), ROWS, 3, 40.0)
    assert [str(p.relative_to(tmp_path)) for p in written] == [
        "assets/strengths/mine.json", "docs/results/mine.md", "assets/team/a.md",
    ]  # fmt: skip
    assert json.loads(written[0].read_text())["length"]["b"]["sql"] == 4.0
    assert "3 held-out prompts" in written[1].read_text()
    card = written[2].read_text()
    assert "7 texts of 99 tokens" in card
    assert "`a.safetensors` 2.0 MB" in card
    assert "0.80, 0.25, 0.25" in card
    assert "Rank of the delta: 32" in card
