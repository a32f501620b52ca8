from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specdemo import __version__, cli
from specdemo.pools import pool_names
from specdemo.selectors import SELECTORS
from specdemo.store import Store
from specdemo.types import Message, Sampling

SMALL = ["--pool", "copying", "--dtype", "float32", "--device", "cpu", "--max-new-tokens", "12", "--ignore-eos"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user's own is touched; the embedded model is a tiny one."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    monkeypatch.setenv("SPECDEMO_MODEL", str(tiny_model))
    monkeypatch.delenv("SPECDEMO_DEBUG", raising=False)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = cli.main(argv)
    except SystemExit as exit:
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ------------------------------------------------------------------------------------------------ asking for help


def test_help_and_version_answer_without_heavy_imports() -> None:
    code = (
        "import sys; from specdemo.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "assert not {'torch', 'transformers', 'gradio', 'numpy'} & set(sys.modules)"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "exit codes" in done.stdout
    assert time.monotonic() - began < 5  # 0.15 s on an idle machine


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"specdemo {__version__}\n", "")


@pytest.mark.parametrize("command", ["serve", "generate", "doctor", "list", "bench", "compile"])
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert "usage: specdemo " + command in out


# ------------------------------------------------------------------------------------------------ wrong usage


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice"),
        (["generate"], "required: PROMPT"),
        (["generate", "hi", "--k", "many"], "invalid int value"),
        (["generate", "hi", "--k", "-1"], "k is -1; a draft length is at least 0"),
        (["generate", "hi", "--temperature", "-1"], "temperature is -1.0; it must be at least 0"),
        (["generate", "hi", "--temperature", "nan"], "temperature is nan"),
        (["generate", "hi", "--stop", ""], "A stop string is empty"),
        (["generate", "hi", "--selector", "oracle"], "There is no selector 'oracle'. Choose one of: hedgespec"),
        (["generate", "hi", "--pool", "sea"], "There is no pool 'sea'. Choose one of: embedded"),
        (["generate", "hi", "--option", "loud"], "The option 'loud' should be NAME=VALUE"),
        (["generate", "hi", "--option", "volume=11"], "has no option 'volume'"),
        (["generate", "hi", "--raw", "--system", "Be brief."], "--raw completes the prompt as it is"),
        (["list", "colours"], "invalid choice: 'colours'"),
    ],
)
def test_wrong_usage_is_code_2_and_one_message(
    capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err


# ------------------------------------------------------------------------------------------------ requests


def test_arguments_become_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("from the pipe\n"))
    argv = "generate - --system S --selector fixed --option arm=suffix --option n=3 --k 2 --seed 7 --stop A --stop B"
    sampling = "--temperature 0.5 --top-k 9 --top-p 0.8 --min-p 0.1 --repetition-penalty 1.1 --frequency-penalty 0.2"
    asked = cli.request(cli.parser().parse_args([*argv.split(), *sampling.split(), "--presence-penalty", "0.3"]))
    assert asked.messages == (Message("system", "S"), Message("user", "from the pipe\n"))
    assert (asked.selector, dict(asked.options), asked.k, asked.seed) == ("fixed", {"arm": "suffix", "n": 3}, 2, 7)
    assert asked.stop == ("A", "B")
    assert asked.sampling == Sampling(0.5, 9, 0.8, 0.1, 1.1, 0.2, 0.3)


def test_defaults_are_those_of_a_request() -> None:
    from specdemo.types import Request

    assert cli.request(cli.parser().parse_args(["generate", "hi"])) == Request(messages=(Message("user", "hi"),))
    assert cli.request(cli.parser().parse_args(["generate", "hi", "--raw"])) == Request(prompt="hi")


# ------------------------------------------------------------------------------------------------ generate


def test_json_is_one_object_and_the_run_is_stored(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    code, out, err = run(capsys, "generate", "the the the", *SMALL, "--json", "--check", "--db", str(home / "my.db"))
    assert code == 0, err
    (line,) = out.splitlines()
    result = json.loads(line)
    wanted = (
        "text token_ids drafter_of_token num_spec_steps num_draft_tokens num_accepted_draft_tokens "
        "mean_acceptance_length acceptance_histogram tokens_per_second finish_reason drafter_share timings run_id"
    )
    assert set(wanted.split()) <= set(result)
    assert result["finish_reason"] == "length"
    assert len(result["token_ids"]) == len(result["drafter_of_token"]) == 12
    assert result["num_accepted_draft_tokens"] + result["num_spec_steps"] == 12
    assert result["check"]["identical"] is True
    assert "identical to plain decoding" in err
    store = Store(home / "my.db")
    stored = store.load_run(result["run_id"])
    store.close()
    assert stored is not None
    assert (stored.status, stored.summary["text"]) == ("done", result["text"])
    assert stored.check is not None
    assert stored.check["identical"] is True
    assert stored.provenance["pool_hash"] == result["hash"]


def test_text_goes_to_standard_output_and_nothing_else_does(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    _, out, _ = run(capsys, "generate", "the the", *SMALL, "--json", "--no-db")
    text = json.loads(out)["text"]
    code, out, err = run(capsys, "generate", "the the", *SMALL, "--no-db")
    assert code == 0
    assert out == text + "\n"
    assert "12 tokens in" in err
    assert json.loads(run(capsys, "generate", "x", *SMALL, "--json", "--no-db")[1])["run_id"] is None
    assert not list(home.glob("*.db"))


def test_same_seed_same_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def ids(seed: str) -> list[int]:
        argv = ["generate", "the", *SMALL, "--temperature", "1.5", "--seed", seed, "--json", "--no-db"]
        return list(json.loads(run(capsys, *argv)[1])["token_ids"])

    assert ids("1") == ids("1")
    assert ids("1") != ids("2")


def test_a_difference_is_code_3(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    difference = {
        "index": 4, "token": 7, "text": "a", "margin": 0.01, "plain_token": 8, "plain_text": "b", "plain_margin": None,
    }  # fmt: skip
    result = {"identical": False, "tokens": 4, "first_difference": difference}
    monkeypatch.setattr("specdemo.check.check", lambda *args: result)
    code, out, err = run(capsys, "generate", "the", *SMALL, "--check", "--json", "--no-db")
    assert code == 3
    assert json.loads(out)["check"] == result
    assert "NOT identical to plain decoding: token 4 is 'a' (margin 0.01) instead of 'b' (margin -)" in err


def test_check_of_a_sample_does_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "generate", "the", *SMALL, "--temperature", "1", "--check", "--json", "--no-db")
    assert code == 0
    assert json.loads(out)["check"]["identical"] is None
    assert "not compared: At temperature above 0" in err


def test_failure_is_one_line_and_debug_shows_where(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECDEMO_MODEL", str(tmp_path / "nothing"))
    code, out, err = run(capsys, "generate", "hi", "--no-db")
    assert (code, out) == (1, "")
    assert err.startswith("specdemo: SPECDEMO_MODEL is ")
    assert err.count("\n") == 1
    with pytest.raises(cli.SpecdemoError):
        cli.main(["generate", "hi", "--no-db", "--debug"])
    monkeypatch.setattr("specdemo.pools.models.embedded_model", lambda progress: 1 // 0)
    assert (
        "ZeroDivisionError: integer division or modulo by zero (--debug shows where)" in run(capsys, "generate", "x")[2]
    )


def test_prompt_longer_than_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "generate", "x " * 200, *SMALL, "--no-db")
    assert (code, out) == (1, "")
    assert "context window" in err


def test_unwritable_database_does_not_stop_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run(capsys, "generate", "the", *SMALL, "--json", "--db", str(tmp_path / "file" / "runs.db"))
    assert code == 0
    assert json.loads(out)["run_id"] is None
    assert len(json.loads(out)["token_ids"]) == 12
    assert "the run was not stored" in err


# ------------------------------------------------------------------------------------- interruptions, as processes


SLOW = """
import sys, time, specdemo.engine as engine
from specdemo.cli import main
real = engine.generate
def slow(request, pool):
    for round in real(request, pool):
        time.sleep(0.1)
        yield round
engine.generate = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_stops_and_stores(home: Path) -> None:
    argv = [
        "generate",
        "the",
        "--pool",
        "copying",
        "--dtype",
        "float32",
        "--max-new-tokens",
        "90",
        "--ignore-eos",
        "--k",
        "0",
        "--json",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    database = home / "runs.db"
    store = Store(database)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not any(run["tokens"] != 0 and run["text"] for run in store.list_runs()):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    result = json.loads(out)
    assert result["status"] == "stopped"
    assert result["finish_reason"] is None
    assert 0 < len(result["token_ids"]) < 90
    stored = store.load_run(result["run_id"])
    store.close()
    assert stored is not None
    assert stored.status == "stopped"
    assert [t for r in stored.rounds for t in r.tokens] == result["token_ids"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_closed_pipe_is_no_error(home: Path) -> None:
    argv = [
        "generate",
        "the",
        "--pool",
        "copying",
        "--dtype",
        "float32",
        "--max-new-tokens",
        "90",
        "--ignore-eos",
        "--k",
        "0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 141
    assert "Traceback" not in err
    assert "Exception" not in err
    store = Store(home / "runs.db")
    (row,) = store.list_runs()
    store.close()
    assert row["status"] == "stopped"


# ------------------------------------------------------------------------------------------------ list and doctor


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("selectors", list(SELECTORS)),
        ("drafters", ["prompt-lookup", "suffix", "causal_lm", "eagle", "hydra", "medusa"]),
        ("pools", pool_names()),
    ],
)
def test_list(capsys: pytest.CaptureFixture[str], what: str, names: list[str]) -> None:
    code, out, _ = run(capsys, "list", what, "--json")
    entries = json.loads(out)
    assert code == 0
    assert [entry["name"] for entry in entries] == names
    assert all(entry["summary"] for entry in entries)
    code, out, _ = run(capsys, "list", what)
    assert [line.split()[0] for line in out.splitlines()] == names


def test_doctor(capsys: pytest.CaptureFixture[str], tiny_model: Path, home: Path) -> None:
    code, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["ok"] is True
    assert found["model_path"] == str(tiny_model)
    assert found["versions"]["python"].startswith("3.")
    assert found["threads"] >= 1
    assert found["dtype"] in ("float32", "bfloat16", "float16")
    assert [pool["name"] for pool in found["pools"]] == pool_names()
    assert found["database"] == {"path": str(home / "runs.db"), "writable": True, "runs": 0, "problem": None}
    code, out, _ = run(capsys, "doctor")
    assert code == 0
    assert out.endswith("all is well\n")


def test_doctor_finds_what_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SPECDEMO_MODEL")
    (tmp_path / "file").write_text("")
    code, out, _ = run(capsys, "doctor", "--json", "--no-fetch", "--db", str(tmp_path / "file" / "runs.db"))
    found = json.loads(out)
    assert code == 1
    assert found["model_path"] is None
    assert found["database"]["writable"] is False
    assert len(found["problems"]) == 2
    code, out, _ = run(capsys, "doctor", "--no-fetch")
    assert code == 1
    assert "PROBLEM    " in out


def test_bench(capsys: pytest.CaptureFixture[str], tiny_model: Path) -> None:
    argv = [
        "bench",
        "--pool",
        "copying",
        "--no-compile",
        "--dtype",
        "float32",
        "--device",
        "cpu",
        "--rows",
        "3",
        "--repeats",
        "2",
        "--tokens",
        "4",
    ]
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    measured = json.loads(out)
    assert [row["n"] for row in measured["verify_curve"]] == [1, 2, 3]
    assert measured["plain"]["tokens_per_second"] > 0
    assert measured["pool"]["target_path"] == str(tiny_model)
    code, out, _ = run(capsys, *argv)
    assert code == 0
    assert "paired ratio" in out
    assert run(capsys, "bench", "--rows", "0")[0] == 2


@pytest.mark.model
def test_doctor_gives_a_folder_that_transformers_loads(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers import AutoConfig

    for name in ("SPECDEMO_MODEL", "SPECDEMO_HOME"):
        monkeypatch.delenv(name)
    if "SPECDEMO_HOME" in OUTER:
        monkeypatch.setenv("SPECDEMO_HOME", OUTER["SPECDEMO_HOME"])
    found = json.loads(run(capsys, "doctor", "--json", "--db", str(tmp_path / "runs.db"))[1])
    assert AutoConfig.from_pretrained(found["model_path"]).num_hidden_layers == 30


OUTER = dict(os.environ)  # as pytest was started
