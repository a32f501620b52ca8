"""Logits to the law a token is drawn from, and the dice that draw it.

The only place where temperature, top-k, top-p, min-p and penalties live: target, drafters and plain decoding all come
through :class:`Warp`, so that a transform can never be applied to one of them only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specdemo.types import Sampling, SpecdemoError


class CountPenalty(LogitsProcessor):  # type: ignore[misc]
    """Frequency and presence penalties as the OpenAI API defines them, on generated tokens only.

    ``logit[v] -= frequency * count[v] + presence * (count[v] > 0)``, count over the tokens after the prompt.
    """

    def __init__(self, prompt_tokens: int, frequency: float, presence: float) -> None:
        self.prompt_tokens, self.frequency, self.presence = prompt_tokens, frequency, presence

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """[1, length] token ids, [1, V] logits -> [1, V] logits."""
        generated = input_ids[0, self.prompt_tokens :]
        count = torch.bincount(generated, minlength=scores.shape[-1]).to(scores.dtype)
        return scores - self.frequency * count - self.presence * (count > 0)


class Warp:
    """A run's sampling transforms, in the order of ``transformers.generate``: penalties, temperature, top-k, top-p,
    min-p. Temperature 0 gives one-hot laws, for which speculative sampling *is* greedy decoding."""

    def __init__(self, sampling: Sampling, prompt_tokens: int) -> None:
        s = sampling
        self.greedy = s.temperature == 0
        self._penalties, self._warpers = LogitsProcessorList(), LogitsProcessorList()
        if s.repetition_penalty != 1:
            self._penalties.append(RepetitionPenaltyLogitsProcessor(float(s.repetition_penalty)))
        if s.frequency_penalty or s.presence_penalty:
            self._penalties.append(CountPenalty(prompt_tokens, s.frequency_penalty, s.presence_penalty))
        self.looks_back = bool(self._penalties)
        if self.greedy:
            return
        if s.temperature != 1:
            self._warpers.append(TemperatureLogitsWarper(float(s.temperature)))
        if s.top_k:
            self._warpers.append(TopKLogitsWarper(s.top_k))
        if s.top_p < 1:
            self._warpers.append(TopPLogitsWarper(float(s.top_p)))
        if s.min_p:
            self._warpers.append(MinPLogitsWarper(float(s.min_p)))

    def penalised(self, logits: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        """[n, V] logits after the penalties, float32 or wider. Raises SpecdemoError if they are not numbers."""
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        if self._penalties:
            ids = [torch.tensor([list(c)], dtype=torch.long, device=logits.device) for c in contexts]
            logits = torch.cat([self._penalties(i, row[None]) for i, row in zip(ids, logits, strict=True)])
        top = logits.amax(-1)
        if not torch.isfinite(top).all():
            raise SpecdemoError(
                "The model returned logits that are not numbers, so no token can be drawn. The usual cause is an "
                "overflow in half precision: try --dtype float32."
            )
        # Softmax ignores a constant. With the maximum at 0 a tiny temperature cannot overflow: 0 / t is still 0.
        return logits - top[:, None]

    def __call__(self, logits: Tensor, contexts: Sequence[Sequence[int]]) -> Tensor:
        """[n, V] logits, the token ids before each row (unless not ``looks_back``) -> [n, V] probabilities."""
        return self.law(self.penalised(logits, contexts))

    def law(self, logits: Tensor) -> Tensor:
        """[n, V] penalised logits -> [n, V] probabilities."""
        if self.greedy:
            return torch.zeros_like(logits).scatter_(1, logits.argmax(-1, keepdim=True), 1.0)
        return torch.softmax(self._warpers(None, logits), -1)


class Dice:
    """Seeded randomness of one run, see ``types.Rng``. On the CPU, so that a seed means the same on any device."""

    def __init__(self, seed: int | np.random.SeedSequence) -> None:
        self._uniform = np.random.default_rng(seed).random

    def flip(self, probability: float) -> bool:
        """True with the given probability; never at 0, always at 1."""
        return bool(self._uniform() < probability)

    def draw(self, weights: Tensor) -> int:
        """Inverse transform sampling in float64; never an index of weight zero."""
        cdf = torch.cumsum(weights.double(), 0)
        i = int(torch.searchsorted(cdf, self._uniform() * float(cdf[-1]), right=True))
        return i if i < len(weights) else int(weights.nonzero()[-1])  # u * total may round up to total
