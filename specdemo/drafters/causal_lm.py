"""Any causal language model with the target's vocabulary as a drafter (Leviathan et al. 2211.17192)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdemo.target import HFTarget
from specdemo.types import DraftContext, DrafterStart, Proposal, Rng, Rows, SpecdemoError, Target, Verified

CHUNK = 512  # most rows of one forward


class CausalLM:
    """One run of a small model. Its cache holds the latest ``used`` tokens of the text; drafts lie behind them and are
    simply overwritten. ``ahead`` is the logits after the last committed token: catching up computes them, the first
    draft token is drawn from them.

    Where the model's context window is shorter than the text, a full cache starts again from its latest half.
    """

    def __init__(self, model: HFTarget, vocab_size: int, context: DraftContext) -> None:
        self.model, self.vocab_size, self.transform = model, vocab_size, context.transform
        self.size = min(model.window, context.capacity)
        self.keys, self.values = model.new_slots(self.size)
        self.columns = torch.arange(self.size, device=model.device)
        self.text: list[int] = []
        self.used = 0
        self.ahead = torch.empty(0)

    @torch.no_grad()
    def catch_up(self, verified: Verified) -> Rows | None:
        """Read committed tokens. Teacher-forced, the law of each is that of the logits before it."""
        before, start, rows = self.ahead, len(self.text), []
        step = min(CHUNK, max(1, self.size // 2))
        for i in range(0, len(verified.tokens), step):
            rows.append(self._read(verified.tokens[i : i + step], verified.probs is not None))
        if verified.probs is None:
            return None
        laws = self._law(torch.cat([before, *rows])[:-1], [self.text[: start + i] for i in range(len(verified.tokens))])
        return Rows(laws)

    @torch.no_grad()
    def propose(self, k: int, rng: Rng) -> Proposal:
        """Draft ``k`` tokens one by one, each drawn from this model's law after the run's sampling transforms."""
        k = min(k, self.size // 2)
        if self.used + k > self.size:
            self._start_again()
        logits, tokens, laws = self.ahead, list[int](), list[Tensor]()
        for i in range(k):
            if i:
                logits = self._forward(self.model.forward, tokens[-1:], self.used + i - 1)
            laws.append(self._law(logits, [[*self.text, *tokens]]))
            tokens.append(int(laws[-1].argmax()) if self.transform.greedy else rng.draw(laws[-1][0]))
        return Proposal(tuple(tokens), probs=None if self.transform.greedy or not laws else torch.cat(laws))

    def observe(self, verified: Verified) -> None:
        """Nothing to learn."""

    def _read(self, tokens: Sequence[int], every: bool) -> Tensor:
        """Append committed tokens: [n, V] logits after each of them, or [1, V] after the last."""
        if self.used + len(tokens) > self.size:
            self._start_again()
        if not every and len(tokens) > 1:
            self._forward(self.model.read, tokens[:-1], self.used)
            self.text += tokens[:-1]
            self.used += len(tokens) - 1
            tokens = tokens[-1:]
        logits = self._forward(self.model.forward, tokens, self.used)
        self.text += tokens
        self.used += len(tokens)
        self.ahead = logits[-1:]
        return logits

    def _start_again(self) -> None:
        recent = self.text[-(self.size // 2) :] if self.size > 1 else []
        self.text, self.used = self.text[: len(self.text) - len(recent)], 0
        if recent:
            self._read(recent, every=False)

    def _forward(self, forward: Callable[..., Any], tokens: Sequence[int], at: int) -> Tensor:
        """Run tokens at slots ``at``, ``at`` + 1, ... of the cache: [n, V] logits over the target's vocabulary."""
        slots = self.columns[at : at + len(tokens)]
        behind = slots[:, None] - self.columns
        known = self.model.vocab_size - 1  # ids that only the target's padding has become some token or other
        ids = torch.tensor([list(tokens)], device=self.model.device).clamp(max=known)
        out = forward(self.keys, self.values, ids, slots[None], slots, self.model.masks(behind >= 0, behind))
        return fit(out[0][0], self.vocab_size) if isinstance(out, tuple) else torch.empty(0)

    def _law(self, logits: Tensor, contexts: list[list[int]]) -> Tensor:
        return self.transform(logits, contexts if self.transform.looks_back else [])


def fit(logits: Tensor, vocab_size: int) -> Tensor:
    """[n, any] logits -> [n, vocab_size]: padding beyond the target's vocabulary cut off, missing ids impossible."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[:, :vocab_size]
    return torch.cat([logits, logits.new_full((len(logits), missing), float("-inf"))], -1)


def first_difference(target: Any, drafter: Any) -> str | None:
    """Compare two transformers tokenizers by content, id by id over the ids both have: None, or what differs first.

    Sizes may differ: vocabularies are padded for hardware. Equal sizes prove nothing.
    """
    ours, theirs = ({i: token for token, i in tokenizer.get_vocab().items()} for tokenizer in (target, drafter))
    for i in sorted(ours.keys() & theirs.keys()):
        if ours[i] != theirs[i]:
            return f"token {i} is {ours[i]!r} in the target's vocabulary and {theirs[i]!r} in the drafter's"
    return None if ours.keys() & theirs.keys() else "they share no token id"


def load(target: Target, *, model: str = "target", dtype: str = "auto") -> DrafterStart:
    """Any causal language model with the same vocabulary.

    Args:
        model: a folder, a Hub repository, or "target": the target drafts for itself (a check, not a speed-up).
        dtype: of the weights; auto is the target's.

    Raises:
        SpecdemoError: the model cannot be loaded, or its vocabulary is not the target's.
    """
    if not isinstance(target, HFTarget):
        raise SpecdemoError("causal_lm drafts only for targets loaded through transformers.")
    if model == "target":
        return lambda context: CausalLM(target, target.vocab_size, context)
    same = str(target.dtype).removeprefix("torch.")
    small = HFTarget.load(model, dtype=same if dtype == "auto" else dtype, device=str(target.device))
    return for_model(target, small)


def for_model(target: HFTarget, small: HFTarget) -> DrafterStart:
    """A drafter from a loaded model; refuses a vocabulary that is not the target's."""
    difference = first_difference(target.tokenizer.hf, small.tokenizer.hf)
    if difference:
        raise SpecdemoError(
            f"{small.name} cannot draft for {target.name}: {difference}. A drafter must use the target's tokenizer; "
            "choose a drafter of the same model family."
        )
    return lambda context: CausalLM(small, target.vocab_size, context)
