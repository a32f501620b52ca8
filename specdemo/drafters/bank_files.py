"""Our own heads on disk. None has an LM head of its own: they take rows of the target's.

A bank of EAGLE heads is a folder with the common head, and one small file per member:

* ``config.json``: ``format`` (``FORMAT``), ``head`` (fields of :class:`EagleConfig`), ``vocabulary`` (sha256 of the
  target's tokens, see :func:`vocabulary_hash`), ``members`` (by name: ``rank``, 0 for the common weights as they are).
* ``head.safetensors``: the common weights, named as in :class:`EagleHead`.
* ``<member>.safetensors``: ``vocab`` (int32, target ids it can draft) and, if it has a rank, its :class:`Delta`.

Hydra heads are a folder with ``config.json`` (``format`` ``HYDRA``, ``heads``: fields of :class:`HydraConfig`,
``vocabulary``) and ``heads.safetensors`` (``vocab``, and the weights named as in :class:`HydraHeads`).

Matrices are kept as int8 with a float32 scale per row (``<name>.scale``), half the size of bfloat16; in memory they
have the target's type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdemo.drafters.bank import Member
from specdemo.drafters.checkpoint import demand, demand_finite, read_safetensors
from specdemo.drafters.eagle_head import Delta, EagleConfig, EagleHead
from specdemo.drafters.head_configs import HydraConfig
from specdemo.drafters.head_settings import read_config
from specdemo.drafters.hydra import HydraHeads
from specdemo.target import HFTarget
from specdemo.types import SpecdemoError

Config = TypeVar("Config")
FORMAT = "specdemo-bank-2"
HYDRA = "specdemo-hydra-2"
SCALE = ".scale"


def is_bank(folder: Path) -> bool:
    """Whether a folder holds a bank."""
    return (folder / "head.safetensors").is_file()


def vocabulary_hash(tokenizer: Any) -> str:
    """sha256 over the tokens of a transformers tokenizer in the order of their ids."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return sha256(json.dumps(vocabulary).encode()).hexdigest()


def write_head(folder: Path, head: EagleHead, tokenizer: Any) -> None:
    """Write the common head of a bank that has no members yet."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_packed(head.state_dict()), folder / "head.safetensors")
    config = {
        "format": FORMAT,
        "vocabulary": vocabulary_hash(tokenizer),
        "head": asdict(head.config),
        "members": {},
    }
    _write_config(folder, config)


def write_member(
    folder: Path, name: str, vocab: Tensor, delta: Delta | None, trained: Mapping[str, Any] | None = None
) -> None:
    """Add a member to a bank, or replace it. ``trained``: on what, for its card."""
    config = read_config(folder)
    tensors = {} if delta is None else _packed(delta.state_dict())
    save_file({"vocab": vocab.to(torch.int32).contiguous(), **tensors}, folder / f"{name}.safetensors")
    config["members"][name] = {"rank": 0 if delta is None else delta.rank, "trained": dict(trained or {})}
    _write_config(folder, config)


def read_head(folder: Path, tokenizer: Any) -> EagleHead:
    """The common head, in float32.

    Raises:
        SpecdemoError: the files are damaged, or were made for another target.
    """
    config = _checked(folder, FORMAT, "head", "members")
    _same_vocabulary(folder, config, tokenizer)
    head = EagleHead(_fields(folder, EagleConfig, {**config["head"], "layers": tuple(config["head"]["layers"])}))
    head.load_state_dict(_read(folder / "head.safetensors", head.state_dict()))
    return head


def read_member(folder: Path, name: str, head: EagleHead, lm_head: Tensor) -> Member:
    """A member of a bank, with its rows of the target's ``lm_head`` [V, hidden]."""
    members = _checked(folder, FORMAT, "head", "members")["members"]
    if name not in members:
        raise SpecdemoError(f"{folder} has no head {name!r}; it has: {', '.join(sorted(members))}.")
    rank = int(members[name]["rank"])
    delta = Delta(head.config, rank) if rank else None
    file = folder / f"{name}.safetensors"
    expected = {} if delta is None else dict(delta.state_dict())
    tensors = _read(file, expected, also="vocab")
    vocab = _vocab(file, tensors.pop("vocab"), len(lm_head))
    if delta is not None:
        delta.load_state_dict(tensors)
        delta.requires_grad_(False).to(lm_head.device, lm_head.dtype)
    vocab = vocab.to(lm_head.device)
    return Member(name, delta, vocab, lm_head[vocab].contiguous())


def general(folder: Path) -> str:
    """Name of the member that is the common weights as they are."""
    members = _checked(folder, FORMAT, "head", "members")["members"]
    return next(str(name) for name, member in members.items() if not member["rank"])


def is_hydra(folder: Path) -> bool:
    """Whether a folder holds our own kind of Hydra heads."""
    return (folder / "heads.safetensors").is_file()


def write_hydra(
    folder: Path, heads: HydraHeads, vocab: Tensor, tokenizer: Any, trained: Mapping[str, Any] | None = None
) -> None:
    """Write Hydra heads that take rows of the target's LM head. ``trained``: on what, for their card."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = _packed(heads.state_dict())
    save_file({"vocab": vocab.to(torch.int32).contiguous(), **weights}, folder / "heads.safetensors")
    config = {
        "format": HYDRA,
        "vocabulary": vocabulary_hash(tokenizer),
        "heads": asdict(heads.config),
        "trained": dict(trained or {}),
    }
    _write_config(folder, config)


def read_hydra_heads(folder: Path, tokenizer: Any, vocab_size: int) -> tuple[HydraHeads, Tensor]:
    """Hydra heads, and the target ids they can draft.

    Raises:
        SpecdemoError: the files are damaged, or were made for another target.
    """
    config = _checked(folder, HYDRA, "heads")
    _same_vocabulary(folder, config, tokenizer)
    heads = HydraHeads(_fields(folder, HydraConfig, config["heads"]), own_lm_head=False, norm=True)
    file = folder / "heads.safetensors"
    tensors = _read(file, heads.state_dict(), also="vocab")
    vocab = _vocab(file, tensors.pop("vocab"), vocab_size)
    heads.load_state_dict(tensors)
    return heads, vocab


def _packed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 and a scale per row, vectors in bfloat16."""
    packed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not _is_matrix(tensor.shape):
            packed[name] = tensor.to(torch.bfloat16).contiguous()
            continue
        scale = tensor.float().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 127
        packed[name] = (tensor / scale).round().to(torch.int8).contiguous()
        packed[name + SCALE] = scale.contiguous()
    return packed


def _is_matrix(shape: Sequence[int]) -> bool:
    return len(shape) > 1 and shape[-2] > 1


def _read(file: Path, expected: Mapping[str, Tensor], also: str = "") -> dict[str, Tensor]:
    tensors = read_safetensors(file)
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    shapes |= {name + SCALE: (*shape[:-1], 1) for name, shape in shapes.items() if _is_matrix(shape)}
    if also and also in tensors:
        shapes[also] = tuple(tensors[also].shape)
    elif also:
        shapes[also] = (-1,)
    demand(file, tensors, shapes)
    for name in expected:
        if name + SCALE in shapes:
            tensors[name] = tensors[name] * tensors.pop(name + SCALE)
    demand_finite(file, {name: tensors[name] for name in expected})
    return tensors


def _vocab(file: Path, vocab: Tensor, size: int) -> Tensor:
    vocab = vocab.long()
    if not len(vocab) or int(vocab.min()) < 0 or int(vocab.max()) >= size or len(torch.unique(vocab)) < len(vocab):
        raise SpecdemoError(f"{file}: vocab must list different token ids below {size}.")
    return vocab


def _checked(folder: Path, wanted: str, *keys: str) -> dict[str, Any]:
    config = read_config(folder)
    if config.get("format") != wanted or not {"vocabulary", *keys} <= config.keys():
        raise SpecdemoError(
            f"{folder / 'config.json'} is not that of draft heads in the format {wanted}, but {config.get('format')}. "
            "Heads of another version of specdemo have to be trained or fetched again (docs/training.md)."
        )
    return config


def check_size(folder: Path, made_for: int, target: HFTarget) -> None:
    """Refuse heads that read hidden states of another size.

    Raises:
        SpecdemoError: they do.
    """
    if made_for != target.hidden_size:
        raise SpecdemoError(
            f"{folder} holds draft heads for a target with hidden states of {made_for} numbers; {target.name} has "
            f"{target.hidden_size}. It may share the vocabulary, but heads serve only the model they were trained on."
        )


def _same_vocabulary(folder: Path, config: Mapping[str, Any], tokenizer: Any) -> None:
    if config["vocabulary"] != vocabulary_hash(tokenizer):
        raise SpecdemoError(
            f"{folder} holds draft heads for another vocabulary than the target's. Heads serve only the model they "
            "were trained on; choose those of this target, or train some (`specdemo train`)."
        )


def _fields(folder: Path, kind: Callable[..., Config], fields: Mapping[str, Any]) -> Config:
    try:
        return kind(**fields)
    except (TypeError, KeyError) as error:
        raise SpecdemoError(f"{folder / 'config.json'} does not describe a draft head: {error}.") from error


def _write_config(folder: Path, config: Mapping[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
