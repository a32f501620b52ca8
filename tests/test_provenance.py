import json
import shutil
import subprocess
from pathlib import Path

import pytest

import specdemo
from specdemo import provenance as module
from specdemo.provenance import git_commit, provenance


def test_says_what_produced_a_run() -> None:
    p = provenance({"device": "cpu", "dtype": "torch.bfloat16", "hash": "abc", "window": 8192})
    assert p["version"] == specdemo.__version__
    assert (p["device"], p["dtype"], p["pool_hash"]) == ("cpu", "bfloat16", "abc")
    assert p["pool"]["window"] == 8192
    assert {"python", "platform", "cpu", "torch", "transformers", "gradio", "threads", "git"} <= set(p)
    assert json.loads(json.dumps(p)) == p


def test_threads_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    assert provenance({})["threads"] == torch.get_num_threads()


def git(folder: Path, *arguments: str) -> str:
    if shutil.which("git") is None:
        pytest.skip("needs git")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_of_a_checkout_only(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    tracked = tmp_path / "package" / "code.py"
    tracked.write_text("1")
    assert git_commit(tmp_path) is None
    git(tmp_path, "init")
    assert git_commit(tmp_path) is None  # nothing committed
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "x")
    commit = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "runs.db").write_text("untracked files do not count")
    assert git_commit(tmp_path) == commit
    tracked.write_text("2")
    assert git_commit(tmp_path) == f"{commit}+dirty"
    assert git_commit(tmp_path / "package") is None  # installed below somebody's checkout


def test_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_commit(tmp_path) is None


def test_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARIES", ("surely-not-installed",))
    module._machine.cache_clear()
    assert provenance({})["surely-not-installed"] is None
    module._machine.cache_clear()
