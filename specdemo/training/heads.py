"""Training draft heads by distillation: whole heads, or low-rank deltas of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from specdemo.drafters.eagle_head import Delta, EagleHead
from specdemo.drafters.hydra import HydraHeads
from specdemo.training.features import Features
from specdemo.training.unroll import Rows, unroll
from specdemo.types import SpecdemoError

PROMPT = -1.0  # marks a prompt's tokens
ENOUGH = 0.3  # share of answers in a row that is worth its time when only answers count
ADAM = 0.25  # AdamW's learning rate, in Muon's
COUNT = 10  # every so many updates the progress bar tells how often the head is right
DECAY = 0.8  # weight of each later step, as in EAGLE-3

States = Callable[[Rows, Tensor, int], Iterable[Tensor]]
"""``states(rows, embedding, steps)``: what the LM head reads at steps 0, 1 ..., [b, t - 1 - s, hidden] each, where
index i of step s drafts token i + 2 + s."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a head is trained.

    Attributes:
        positions: how many positions are seen, all passes together. ``batch``: per update. ``length``: of a row.
        steps: unrolled draft steps. ``lr``: peak learning rate, warmed up over 3 %, then a cosine to 5 %.
        prompts: weight of the prompt's tokens; the target did not write them, but its law there teaches, too.
        reading: share of the training that reads prompts, too. The rest learns from answers alone, and from rows that
            hold enough of them.
    """

    positions: int = 4_000_000
    batch: int = 1024
    length: int = 128
    steps: int = 3
    lr: float = 6e-3
    prompts: float = 0.5
    reading: float = 0.4
    weight_decay: float = 0.01
    seed: int = 0


class Corpus:
    """The texts of several domains as one: what is trained on, or what is held out.

    Args:
        domains: features by domain. ``layers``: the hidden states the head reads.
        held_out: the held-out texts instead of the others.
    """

    def __init__(self, domains: Mapping[str, Features], layers: Sequence[int], held_out: bool) -> None:
        self.domains, self.parts, self.weights = list(domains), list(domains.values()), list[Tensor]()
        self.layers = [self.parts[0].layers.index(layer) for layer in layers]
        starts, lengths, offset = [], [], 0
        for f in self.parts:
            weight = torch.cat([torch.where(f.answers[1:], 1.0, PROMPT), torch.zeros(1)])
            weight[f.starts[1:] - 1] = 0  # nothing follows the end of a text
            self.weights.append(weight)
            chosen = f.held_out if held_out else ~f.held_out
            starts.append(f.starts[:-1][chosen] + offset)
            lengths.append((f.starts[1:] - f.starts[:-1])[chosen])
            offset += len(f.tokens)
        self.starts, self.lengths = torch.cat(starts), torch.cat(lengths)
        self.owner = torch.repeat_interleave(torch.arange(len(starts)), torch.tensor([len(s) for s in starts]))
        self._ends = torch.tensor([len(f.tokens) for f in self.parts]).cumsum(0)

    def rows(self, order: Tensor, length: int, answers: float = 0.0) -> tuple[Tensor, Tensor]:
        """Texts in this order, end to end, cut to rows: [rows, length] positions and numbers of texts. Rows with a
        smaller share than ``answers`` of tokens that the target wrote are left out."""
        pieces = zip(self.starts[order].tolist(), self.lengths[order].tolist(), strict=True)
        index = torch.cat([torch.arange(start, start + n) for start, n in pieces])
        document = torch.repeat_interleave(order, self.lengths[order])
        usable = len(index) // length * length
        index, document = index[:usable].view(-1, length), document[:usable].view(-1, length)
        if answers:
            kept = (torch.cat(self.weights)[index] == 1).float().mean(-1) >= answers
            index, document = index[kept], document[kept]
        return index, document

    def gather(self, index: Tensor, document: Tensor, prompts: float = 0.0) -> Rows:
        """The tensors of a batch of rows. ``prompts``: weight of the prompts' tokens."""

        def pick(tensors: Sequence[Tensor]) -> Tensor:
            flat = index.flatten()
            part = torch.bucketize(flat, self._ends, right=True)
            out = tensors[0].new_empty(len(flat), *tensors[0].shape[1:])
            for number in torch.unique(part).tolist():
                here = (part == number).nonzero()[:, 0]
                begin = 0 if number == 0 else int(self._ends[number - 1])
                out[here] = tensors[number][flat[here] - begin]
            return out.view(*index.shape, *out.shape[1:])

        layers = len(self.parts[0].layers)
        hidden = pick([f.hidden for f in self.parts])
        hidden = hidden.view(*index.shape, layers, hidden.shape[-1] // layers)
        weight = pick(self.weights)
        weight[weight == PROMPT] = prompts
        weight[:, :8] *= 0.1  # the beginning of a row has lost its past
        return Rows(
            tokens=pick([f.tokens for f in self.parts]).long(),
            document=document,
            features=hidden[..., self.layers, :].flatten(-2),
            ids=pick([f.ids for f in self.parts]).long(),
            law=pick([f.law for f in self.parts]).float(),
            weight=weight,
        )


class Frozen(torch.autograd.Function):
    """Soft cross entropy through an LM head that does not learn: the gradient is ready when the loss is."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, rows: Tensor, columns: Tensor, law: Tensor, weight: Tensor, count: bool
    ) -> tuple[Tensor, Tensor]:
        """states [n, hidden], rows [V, hidden], law [n, LAW] at columns [n, LAW], weight [n]
        -> summed loss, and if ``count`` [n] the most likely row."""
        logits = states.to(rows.dtype) @ rows.T
        top = logits.argmax(-1) if count else columns[:, 0] * 0 - 1
        q = torch.softmax(logits, -1)
        loss = -((law * q.gather(1, columns).float().clamp_min(1e-8).log()).sum(-1) * weight).sum()
        q.scatter_add_(1, columns, -law.to(q.dtype))
        ctx.save_for_backward((q @ rows).to(states.dtype) * weight[:, None].to(states.dtype))
        ctx.mark_non_differentiable(top)
        return loss, top

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The stored gradient, scaled."""
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None, None


@dataclass
class Teacher:
    """The target's side: its embedding [V, hidden], and the LM head's rows of the draft vocabulary.

    Attributes:
        vocab: [draft vocabulary] target ids. ``rows``: [draft vocabulary, hidden]. ``column``: [V] id -> row or -1.
    """

    embedding: Tensor
    vocab: Tensor
    rows: Tensor
    column: Tensor

    @classmethod
    def of(cls, embedding: Tensor, lm_head: Tensor, vocab: Tensor) -> Teacher:
        """From the target's embedding and LM head, both [V, hidden]."""
        column = torch.full((len(lm_head),), -1)
        column[vocab] = torch.arange(len(vocab))
        return cls(embedding, vocab, lm_head[vocab].contiguous(), column)

    def law(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Columns [b, t, LAW] of the target's likeliest next tokens, -1 where the draft vocabulary lacks them, and
        their probabilities, renormalised over those it has."""
        columns = self.column[rows.ids]
        law = rows.law * (columns >= 0)
        return columns, law / law.sum(-1, keepdim=True).clamp_min(1e-6)


def train(
    learner: nn.Module,
    states: States,
    corpus: Corpus,
    teacher: Teacher,
    recipe: Recipe,
    checkpoint: Path,
    progress: bool = True,
    every: Callable[[int], None] | None = None,
) -> None:
    """Train what ``learner`` holds. Goes on from ``checkpoint``, if there is one.

    Args:
        states: see :data:`States`.
        every: called with the positions seen so far, once per 5 % of the way.
    """
    optimizer = Optimizer(learner, recipe)
    seen = _resume(checkpoint, learner, optimizer)
    mark, updates = seen, 0
    batches = _batches(corpus, recipe, seen)
    with tqdm(total=recipe.positions, initial=seen, unit="pos", unit_scale=True, disable=not progress) as bar:
        while seen < recipe.positions:
            optimizer.set_lr(recipe.lr * schedule(seen / recipe.positions))
            counted = updates % COUNT == 0
            loss, hits = step(states, next(batches), teacher, recipe.steps, counted)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(learner.parameters(), 0.5)
            optimizer.step()
            seen += recipe.batch
            bar.update(recipe.batch)
            updates += 1
            if counted:
                bar.set_postfix_str(f"loss {float(loss.detach()):.3f} top-1 " + " ".join(f"{hit:.2f}" for hit in hits))
            if seen - mark >= recipe.positions // 20:
                mark = seen
                _save(checkpoint, learner, optimizer, seen)
                if every:
                    every(seen)
    _save(checkpoint, learner, optimizer, seen)


class Optimizer:
    """Muon for matrices (Jordan et al. 2024), AdamW for everything else. Muon reaches the same held-out agreement with
    about half the positions that AdamW needs (docs/log.md)."""

    def __init__(self, learner: nn.Module, recipe: Recipe) -> None:
        if not hasattr(torch.optim, "Muon"):
            raise SpecdemoError(
                f"Training needs torch 2.9 or later (its optimizer Muon); this is torch {torch.__version__}. Upgrade "
                "torch for training; everything else runs with this version."
            )
        matrices = [p for p in learner.parameters() if p.ndim == 2]
        others = [p for p in learner.parameters() if p.ndim != 2]
        decay = recipe.weight_decay
        self.parts: list[torch.optim.Optimizer] = []
        self.rates: list[float] = []  # of each part, in the recipe's
        if matrices:
            muon = torch.optim.Muon(matrices, lr=recipe.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
            self.parts.append(muon)
            self.rates.append(1.0)
        if others:
            self.parts.append(torch.optim.AdamW(others, lr=ADAM * recipe.lr, betas=(0.9, 0.95), weight_decay=decay))
            self.rates.append(ADAM)

    def set_lr(self, lr: float) -> None:
        """Muon's learning rate in the next step; AdamW's follows."""
        for part, rate in zip(self.parts, self.rates, strict=True):
            for group in part.param_groups:
                group["lr"] = rate * lr

    def step(self) -> None:
        """Update, and forget the gradients."""
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)


def eagle_states(head: EagleHead, delta: Delta | None) -> States:
    """The head's own steps (see unroll.py); of the head as it is, or of the delta on it."""
    return lambda rows, embedding, steps: unroll(head, delta, rows, embedding, steps)


def hydra_states(heads: HydraHeads) -> States:
    """Hydra's heads, one per step; each text's prefix sees only its own text."""

    def states(rows: Rows, embedding: Tensor, steps: int) -> Iterable[Tensor]:
        same = rows.document[:, :, None] == rows.document[:, None, :]
        mask = torch.ones_like(same[0]).tril() & same
        read: list[Tensor] = heads(rows.features, F.embedding(rows.tokens, embedding), mask)
        return read[:steps]

    return states


def schedule(done: float) -> float:
    """Learning rate relative to its peak: warm-up, then a cosine."""
    return min(done / 0.03 + 0.01, 1.0) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def step(states: States, rows: Rows, teacher: Teacher, steps: int, count: bool = True) -> tuple[Tensor, list[float]]:
    """Mean loss over all steps, and if ``count`` (it costs a tenth of the time) the share of positions at which each
    step's first choice is the target's."""
    with torch.autocast(rows.tokens.device.type, torch.bfloat16, enabled=teacher.rows.dtype == torch.bfloat16):
        columns, law = teacher.law(rows)
        total, weights, hits = torch.zeros(()), 0.0, []
        for s, read in enumerate(states(rows, teacher.embedding, steps)):
            n = read.shape[1]
            shift = slice(1 + s, 1 + s + n)  # the token before the drafted one, after which the target's law stands
            weight = (rows.weight[:, shift] * (rows.document[:, shift] == rows.document[:, :n])).flatten()
            first = columns[:, shift, 0].flatten()
            keep = ((weight > 0) & (first >= 0)).nonzero()[:, 0]
            loss, top = Frozen.apply(  # type: ignore[no-untyped-call]
                read.flatten(0, 1)[keep],
                teacher.rows,
                columns[:, shift].flatten(0, 1)[keep].clamp_min(0),
                law[:, shift].flatten(0, 1)[keep],
                weight[keep],
                count,
            )
            total = total + DECAY**s * loss
            weights += DECAY**s * float(weight[keep].sum())
            hits.append(float((top == first[keep]).sum()) / max(1, int((weight > 0).sum())))
    return total / max(weights, 1e-9), hits


def _batches(corpus: Corpus, recipe: Recipe, seen: int) -> Iterator[Rows]:
    """Endless batches; every pass lays the texts out in another order and takes the rows in another."""
    per_batch = max(1, recipe.batch // recipe.length)
    generator = torch.Generator().manual_seed(recipe.seed + seen)
    while True:
        reading = seen < recipe.reading * recipe.positions
        texts = torch.randperm(len(corpus.starts), generator=generator)
        index, document = corpus.rows(texts, recipe.length, 0.0 if reading else ENOUGH)
        if not len(index):
            raise SpecdemoError("There are too few texts to train on. Let the target write more.")
        for chosen in torch.split(torch.randperm(len(index), generator=generator), per_batch):
            yield corpus.gather(index[chosen], document[chosen], recipe.prompts if reading else 0.0)
            seen += recipe.batch
            if reading and seen >= recipe.reading * recipe.positions:
                break


def _resume(path: Path, learner: nn.Module, optimizer: Optimizer) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    learner.load_state_dict(state["learner"])
    for part, saved in zip(optimizer.parts, state["optimizer"], strict=True):
        part.load_state_dict(saved)
    return int(state["seen"])


def _save(path: Path, learner: nn.Module, optimizer: Optimizer, seen: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(
        {"learner": learner.state_dict(), "optimizer": [p.state_dict() for p in optimizer.parts], "seen": seen}, part
    )
    part.replace(path)
