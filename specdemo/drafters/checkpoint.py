"""Checkpoints of published draft heads as files: fetched, opened without running any code of theirs, and checked.

Heads that are loaded "as far as the names fit" draft badly and say nothing; here everything that does not fit is an
error that names the file, the tensors and the way out.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdemo.drafters.causal_lm import first_difference
from specdemo.drafters.head_settings import CONFIG, read_json
from specdemo.types import SpecdemoError

SAFETENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "hydra_lm_head.pt", "medusa_lm_head.pt")
TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")  # any of them holds the vocabulary
SMALL = (CONFIG, *TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
FORBIDDEN = re.compile(r"GLOBAL|call reduce|instantiate|Unsupported (class|operand)")  # torch, of code in a pickle


def fetch(source: str, revision: str | None = None) -> Path:
    """Folder of a checkpoint: a local one as it is, else a Hub repository's config, tokenizer and weights.

    Pickles are downloaded only where the repository has no safetensors.

    Args:
        source: a folder, or the name of a Hub repository. ``revision``: its branch, tag or commit.

    Raises:
        SpecdemoError: neither, or the download failed.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or not REPOSITORY.fullmatch(source):
        raise SpecdemoError(
            f"{source} is not a folder, and not the name of a Hub repository (owner/name) either. Give the folder that "
            "holds the head's config.json and its weights, or the repository."
        )
    found = _download(source, revision, [*SMALL, INDEX, "model*.safetensors"])
    return found if any(found.glob("model*.safetensors")) else _download(source, revision, [*SMALL, *PICKLES])


def _download(source: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the Hub's, the HTTP library's, the disk's: all have the same ways out
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SpecdemoError(
            f"{source} could not be downloaded from the Hub ({reason.rstrip('.')}). Check its name and the network; a "
            "gated repository needs its terms accepted on its page and a token (`hf auth login`). Or download it "
            "elsewhere and give the folder."
        ) from error


def weights_file(folder: Path) -> Path:
    """The file that :func:`read_tensors` reads: safetensors if there are any, else a pickle of tensors.

    Raises:
        SpecdemoError: none of the known names is there.
    """
    names = (SAFETENSORS, INDEX, *PICKLES)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise SpecdemoError(
        f"{folder} has no weights: none of {', '.join(names)}. Copy them there, under one of the names."
    )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by their published names, on the CPU, mapped into memory where the format allows.

    Raises:
        SpecdemoError: no weights, damaged ones, or a pickle that holds more than tensors; nothing of it is run.
    """
    path = weights_file(folder)
    if path.name == INDEX:
        return _read_shards(path)
    return read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one safetensors file.

    Raises:
        SpecdemoError: it is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    _refuse_pointer(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def _read_shards(index: Path) -> dict[str, Tensor]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(n, str) and Path(n).name == n for n in places.values()):
        raise SpecdemoError(f"{index} has no weight_map from tensors to files beside it. Download it again.")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        if not (index.parent / name).is_file():
            raise SpecdemoError(f"{index.parent / name} is missing, but {index.name} lists it. Download it, too.")
        tensors |= read_safetensors(index.parent / name)
    if tensors.keys() != places.keys():
        differ = ", ".join(sorted(tensors.keys() ^ places.keys()))
        raise SpecdemoError(
            f"{index} and the files beside it do not list the same tensors: {differ}. Download them again."
        )
    return tensors


def _read_pickle(path: Path) -> dict[str, Tensor]:
    _refuse_pointer(path)
    try:  # files written before torch 1.6 are no archives and cannot be mapped
        content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # whatever damaged bytes lead to
        if FORBIDDEN.search(str(error)):
            raise SpecdemoError(
                f"{path} holds more than tensors: a pickle that wants to run code, which was not run "
                f"({_short(error)}). Take a file from a source you trust, or convert it to model.safetensors there."
            ) from error
        raise _damaged(path, error) from error
    if isinstance(content, dict) and all(isinstance(k, str) and isinstance(v, Tensor) for k, v in content.items()):
        return dict(content)
    raise SpecdemoError(
        f"{path} is not a dictionary of names and tensors (a state dict) but {type(content).__name__} of something "
        "else. Save the head's state_dict() alone."
    )


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise SpecdemoError(f"{path} is a Git LFS pointer, not the file itself. Run `git lfs pull` in its folder.")


def _damaged(path: Path, error: Exception) -> SpecdemoError:
    return SpecdemoError(f"{path} is damaged or was not downloaded completely ({_short(error)}). Download it again.")


def _short(error: Exception) -> str:
    """The cause alone: around it, torch explains over many lines how to switch its safety off."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if FORBIDDEN.search(line)), lines[0] if lines else type(error).__name__)
    return cause.removeprefix("WeightsUnpickler error: ").partition(". Please")[0][:200].rstrip(".")


# ------------------------------------------------------------------------------------------------- what must be true


def demand(file: Path, found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse anything but exactly the ``expected`` tensors (name to shape).

    Raises:
        SpecdemoError: names every tensor that is missing, unexpected or of another shape.
    """
    shared = expected.keys() & found.keys()
    wrong = [n for n in sorted(shared) if tuple(found[n].shape) != expected[n]]
    problems = [
        ("missing", sorted(expected.keys() - found.keys())),
        ("unexpected", sorted(found.keys() - expected.keys())),
        ("of the wrong shape", [f"{n} {list(found[n].shape)} instead of {list(expected[n])}" for n in wrong]),
    ]
    listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in problems if names)
    if listed:
        raise SpecdemoError(
            f"{file} does not fit its config.json and the target. {listed}. A head with other tensors than its network "
            "has would draft badly without a word; use the config.json published with these weights, and their target."
        )


def demand_finite(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are no plain floating-point tensors, or hold NaN or infinity.

    Raises:
        SpecdemoError: names the tensor.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS or tensor.layout != torch.strided:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise SpecdemoError(
                f"{file}: {name} holds {kind}; quantised heads cannot be read. Use the unquantised one."
            )
        low, high = torch.aminmax(tensor.detach())  # NaN passes through both
        if not (torch.isfinite(low) and torch.isfinite(high)):
            raise SpecdemoError(f"{file}: {name} holds NaN or infinity. The file is damaged or its training failed.")


def check_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Refuse a checkpoint that comes with another tokenizer than the target's; without one there is nothing to compare.

    Args:
        tokenizer: the target's, of transformers.

    Raises:
        SpecdemoError: names the first token that differs.
    """
    from tokenizers import Tokenizer

    if not any((folder / name).is_file() for name in TOKENIZER):
        return
    fast = folder / TOKENIZER[0]
    try:  # other formats need a class that knows them; the target's does if the tokenizer is the same
        own = Tokenizer.from_file(str(fast)) if fast.is_file() else type(tokenizer).from_pretrained(folder)
    except Exception as error:  # the tokenizers library raises bare exceptions
        raise SpecdemoError(
            f"The tokenizer in {folder} cannot be read ({_short(error)}). Download it again, or remove its files if "
            "you know the head to be made for this target."
        ) from error
    difference = first_difference(tokenizer, own)
    if difference:
        raise SpecdemoError(
            f"{folder} was made for another tokenizer: {difference}. Choose a head that was trained for this target."
        )
