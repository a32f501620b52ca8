"""Small random draft heads for the tiny target, as folders that the families load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdemo.drafters.bank_files import write_head, write_hydra, write_member
from specdemo.drafters.eagle_head import Delta, EagleConfig, EagleHead
from specdemo.drafters.head_configs import HydraConfig
from specdemo.drafters.hydra import HydraHeads
from specdemo.target import HFTarget
from specdemo.types import Verified
from tests import tiny

VOCAB = torch.tensor([40, 3, 9, 17, 5, 60, 21, 8, 33, 7, 30, 31])  # in no order


def config(version: int = 3, **switches: Any) -> EagleConfig:
    """The shape of a head for the tiny target: hidden size 32, two layers, 64 tokens."""
    layers = (0, 1, 2) if version == 3 else (2,)
    return EagleConfig(32, 48, 4, 2, 8, 32, layers, 64, version=version, **switches)


def wild(network: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Random weights, large enough that every input is heard."""
    torch.manual_seed(seed)
    for name, p in network.named_parameters():
        with torch.no_grad():
            p.copy_(torch.randn(p.shape) * 0.3 + (1.0 if "norm" in name else 0.0))
    return network


def bank(folder: Path, tokenizer: Any = None, **switches: Any) -> Path:
    """A bank with two members: "all", the common weights over the whole vocabulary, and "some", a delta over a part."""
    head = wild(EagleHead(config(**switches)))
    write_head(folder, head, tokenizer or tiny.tokenizer())
    write_member(folder, "all", torch.arange(64), None)
    write_member(folder, "some", VOCAB, wild(Delta(head.config, 4), seed=1))
    return folder


def hydra(folder: Path) -> Path:
    """Three Hydra heads over a part of the vocabulary."""
    heads = HydraHeads(HydraConfig(32, 3, 2, False, 0, 0, 0, 0.0, 0.0, 64), own_lm_head=False, norm=True)
    write_hydra(folder, wild(heads), VOCAB, tiny.tokenizer())
    return folder


def medusa(folder: Path) -> Path:
    """Three Medusa heads, as published."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    weights: dict[str, Tensor] = {}
    for i in range(3):
        weights |= {f"{i}.0.linear.weight": torch.randn(32, 32) * 0.3, f"{i}.0.linear.bias": torch.randn(32) * 0.3}
        weights[f"{i}.1.weight"] = torch.randn(64, 32) * 0.3
    torch.save(weights, folder / "medusa_lm_head.pt")
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 1}))
    return folder


def options(family: str, folder: Path) -> dict[str, Any]:
    """What a family needs to be loaded for the tiny target."""
    makers = {"hydra": hydra, "medusa": medusa}
    if family == "eagle":
        return {"model": str(bank(folder / family)), "member": "some", "grow": False}
    return {"model": str(makers[family](folder / family))} if family in makers else {}


@torch.no_grad()
def states(target: HFTarget, text: list[int]) -> Tensor | None:
    """[n, width] the target's hidden states each token of a text was predicted from, as the engine hands them out."""
    if not target.layers:
        return None
    session = target.session(len(text), 1)
    session.prefill(text)
    assert session.hidden is not None
    return torch.cat([torch.zeros_like(session.hidden[:1]), session.hidden])


def verified(text: list[int], read: Tensor | None, start: int, end: int, probs: Tensor | None = None) -> Verified:
    """Tokens ``start`` to ``end`` of a text."""
    return Verified(tuple(text[start:end]), probs, None if read is None else read[start:end])
