"""The law drafts are drawn from: a drafter's logits, maybe over a vocabulary of its own, after the run's transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specdemo.types import Proposal, Rng, Rows, Transform

Step = Callable[[int, int], Tensor]


@dataclass(frozen=True, slots=True)
class Law:
    """Sampling transforms of a run, applied to drafts.

    Attributes:
        vocab_size: the target's vocabulary, which penalties count in.
    """

    transform: Transform
    vocab_size: int

    def __call__(self, logits: Tensor, vocab: Tensor | None, contexts: Iterable[list[int]]) -> Tensor:
        """The laws of several positions. Penalties count target ids, so they need all columns.

        Args:
            logits: [n, draft vocabulary]. ``vocab``: target ids of its columns, None: the target's own.
            contexts: the n token lists before each row; not even made where nothing looks back at them.

        Returns:
            [n, draft vocabulary] probabilities.
        """
        if not self.transform.looks_back:
            return self.transform(logits, [])
        if vocab is None:
            return self.transform(logits, list(contexts))
        wide = logits.new_full((len(logits), self.vocab_size), float("-inf"))
        wide[:, vocab] = logits
        return self.transform(wide, list(contexts))[:, vocab]

    def rows(self, logits: Tensor, vocab: Tensor | None, contexts: Iterable[list[int]]) -> Rows:
        """What chains would have begun with at several positions; arguments as above. At temperature 0 that is one
        token each, and comparing tokens costs a fraction of comparing laws."""
        if not self.transform.greedy:
            return Rows(self(logits, vocab, contexts), vocab=vocab)
        return Rows(tokens=tuple(self.certain(logits, vocab, contexts).tolist()))

    def certain(self, logits: Tensor, vocab: Tensor | None, contexts: Iterable[list[int]]) -> Tensor:
        """[n] target ids of the tokens that chains begin with at temperature 0; arguments as above."""
        columns = best(self(logits, vocab, contexts) if self.transform.looks_back else logits)
        return columns if vocab is None else vocab[columns]

    def chain(self, k: int, text: Sequence[int], first: Tensor, step: Step, vocab: Tensor | None, rng: Rng) -> Proposal:
        """Draft ``k`` tokens one after the other, each drawn from its law.

        Args:
            text: the committed tokens. ``first``: [1, draft vocabulary] logits after them.
            step: ``step(i, token)``: the same after draft token i, which is ``token``.
        """
        greedy, tokens, laws = self.transform.greedy, list[int](), list[Tensor]()
        logits = first
        for i in range(k):
            if i:
                logits = step(i - 1, tokens[-1])
            if greedy and not self.transform.looks_back:
                column = int(best(logits))
            else:
                laws.append(self(logits, vocab, ([*text, *tokens] for _ in range(1))))
                column = int(best(laws[-1])) if greedy else rng.draw(laws[-1][0])
            tokens.append(column if vocab is None else int(vocab[column]))
        return Proposal(tuple(tokens)) if greedy or not laws else Proposal(tuple(tokens), None, torch.cat(laws), vocab)


def best(rows: Tensor) -> Tensor:
    """[n, columns] -> [n] where each row is largest (several times as fast as ``argmax`` in bfloat16 on CPUs)."""
    return rows.max(-1).indices
