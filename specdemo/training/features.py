"""What a head learns from: texts of the target, and the target's hidden states along them.

A corpus is a folder with one JSON-lines file per domain, rows ``{"prompt", "gen"}``: the prompt's text and the token
ids the target answered (see distil.py). Features are kept as one safetensors file per domain, so that the target reads
every text once, however often heads are trained.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from specdemo.target import HFTarget
from specdemo.types import Message, Request, SpecdemoError

BATCH = 4096  # tokens per forward, padding included
LONGEST = 1024  # tokens of one text; the rest is cut off
LAW = 16  # likeliest next tokens that are kept of the target's law
CANDIDATES = 14336  # tokens that heads may draft, at most
HELD_OUT = 25  # one prompt in so many is never trained on


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer to it. ``answer`` is the position where the answer begins."""

    tokens: tuple[int, ...]
    answer: int
    held_out: bool


@dataclass(frozen=True, slots=True)
class Features:
    """Texts of one domain, one after the other.

    Attributes:
        tokens: [n]. ``answers``: [n] whether the target wrote the token. ``starts``: [texts + 1] where texts begin.
        hidden: [n, layers x hidden] the target's hidden states at each token, on disk until they are sliced.
        ids: [n, LAW] the target's most likely next tokens, the likeliest first. ``law``: [n, LAW] their probabilities.
        held_out: [texts] which texts are for evaluation only.
        layers: the hidden states kept.
    """

    tokens: Tensor
    answers: Tensor
    starts: Tensor
    hidden: Tensor
    ids: Tensor
    law: Tensor
    held_out: Tensor
    layers: tuple[int, ...]


def read_corpus(path: Path, target: HFTarget) -> list[Text]:
    """The texts of a domain's file, prompts through the target's chat template. Prompts decide what is held out, so
    that two answers to one prompt are never on both sides."""
    texts = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            prompt = target.tokenizer.encode(Request(messages=(Message("user", row["prompt"]),)))
            held_out = crc32(row["prompt"].encode()) % HELD_OUT == 0
            texts.append(Text((*prompt, *row["gen"])[:LONGEST], len(prompt), held_out))
        except (ValueError, KeyError, TypeError) as error:
            raise SpecdemoError(
                f"{path}, line {number}: a row needs prompt (text) and gen (token ids): {error}"
            ) from error
    return texts


def extract(corpus: Path, folder: Path, target: HFTarget, layers: Sequence[int], progress: bool = True) -> None:
    """Let the target read every text of a corpus; domains whose file is already in ``folder`` are skipped."""
    folder.mkdir(parents=True, exist_ok=True)
    domains = {path.stem: read_corpus(path, target) for path in sorted(corpus.glob("*.jsonl"))}
    if not domains:
        raise SpecdemoError(f"There are no texts (*.jsonl) in {corpus}. Let the target write some first.")
    among = frequent(list(domains.values()), target.vocab_size, CANDIDATES)
    for domain, texts in domains.items():
        out = folder / f"{domain}.safetensors"
        if out.exists():
            continue
        total = sum(len(t.tokens) for t in texts)
        with target.untouched(), tqdm(total=total, unit="tok", desc=domain, disable=not progress) as bar:
            hidden = _hidden(texts, target, tuple(layers), bar)
        ids, law = laws(hidden, target, among)
        lengths = torch.tensor([0, *(len(t.tokens) for t in texts)])
        part = out.with_suffix(".part")
        save_file(
            {
                "tokens": torch.cat([torch.tensor(t.tokens, dtype=torch.int32) for t in texts]),
                "answers": torch.cat([torch.arange(len(t.tokens)) >= t.answer for t in texts]),
                "starts": lengths.cumsum(0),
                "hidden": hidden,
                "ids": ids,
                "law": law,
                "held_out": torch.tensor([t.held_out for t in texts]),
            },
            part,
            {"layers": json.dumps(list(layers))},
        )
        part.replace(out)


def frequent(domains: Sequence[Sequence[Text]], vocab_size: int, count: int) -> Tensor:
    """[count] the tokens that answers are made of, in order of their ids. Every domain counts alike, however long its
    texts; prompts count a third."""
    share = torch.zeros(vocab_size, dtype=torch.float64)
    for texts in domains:
        written = torch.tensor([t for text in texts for t in text.tokens[text.answer :]])
        read = torch.tensor([t for text in texts for t in text.tokens])
        for tokens, weight in ((written, 1.0), (read, 0.3)):
            share += weight * torch.bincount(tokens, minlength=vocab_size) / max(1, len(tokens))
    return share.argsort(descending=True)[:count].sort().values


@torch.no_grad()
def laws(hidden: Tensor, target: HFTarget, among: Tensor) -> tuple[Tensor, Tensor]:
    """The target's likeliest next tokens and their probabilities, [n, LAW] each.

    Args:
        hidden: [n, layers x hidden] hidden states, the last layer's at the end.
        among: [m] token ids to look at: those that heads may draft. The whole vocabulary would cost more than
            reading the texts. Probabilities are renormalised over them.
    """
    rows, ids, law = target.lm_head[among], [], []
    for states in torch.split(hidden, BATCH // 4):
        logits = (states[:, -rows.shape[1] :].to(rows.device) @ rows.T).float()
        top = logits.topk(LAW)
        ids.append(among[top.indices].int().cpu())
        law.append((top.values - logits.logsumexp(-1, keepdim=True)).exp().half().cpu())
    return torch.cat(ids), torch.cat(law)


def load(folder: Path, domain: str) -> Features:
    """The features of a domain, mapped from disk."""
    path = folder / f"{domain}.safetensors"
    if not path.exists():
        there = ", ".join(sorted(p.stem for p in folder.glob("*.safetensors"))) or "none"
        raise SpecdemoError(
            f"There are no features of {domain!r} in {folder} (there are: {there}). Extract them first."
        )
    with safe_open(path, "pt") as file:
        layers = tuple(json.loads(file.metadata()["layers"]))
        return Features(**{key: file.get_tensor(key) for key in file.keys()}, layers=layers)  # noqa: SIM118


@torch.no_grad()
def _hidden(texts: Sequence[Text], target: HFTarget, layers: tuple[int, ...], bar: tqdm[None]) -> Tensor:
    """[n, layers x hidden] of all texts in their order. Texts of like length share a forward."""
    size = target.model.config.get_text_config().hidden_size
    starts = torch.tensor([0, *(len(t.tokens) for t in texts)]).cumsum(0).tolist()
    out = torch.empty(starts[-1], len(layers) * size, dtype=target.dtype)
    for batch in _batches(texts):
        ids = torch.zeros(len(batch), max(len(texts[i].tokens) for i in batch), dtype=torch.long)
        for row, i in enumerate(batch):
            ids[row, : len(texts[i].tokens)] = torch.tensor(texts[i].tokens)
        states = target.model.base_model(
            input_ids=ids.to(target.device), use_cache=False, output_hidden_states=True, return_dict=True
        ).hidden_states
        read = torch.cat([states[layer] for layer in layers], -1).cpu()
        for row, i in enumerate(batch):
            out[starts[i] : starts[i + 1]] = read[row, : len(texts[i].tokens)]
            bar.update(len(texts[i].tokens))
    return out


def _batches(texts: Sequence[Text]) -> Iterator[list[int]]:
    """Indices of texts, grouped by length: padding on the right is behind everything and seen by nobody."""
    batch: list[int] = []
    for i in sorted(range(len(texts)), key=lambda i: len(texts[i].tokens)):
        if batch and (len(batch) + 1) * len(texts[i].tokens) > BATCH:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
