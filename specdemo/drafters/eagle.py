"""EAGLE heads as drafters: EAGLE-1 and -3 chains, EAGLE-2 dynamic trees (arXiv 2401.15077, 2406.16858, 2503.01840)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from specdemo.drafters.bank import Bank, BankRun, Member
from specdemo.drafters.bank_files import check_size, is_bank, read_head, read_member
from specdemo.drafters.eagle_head import EagleHead
from specdemo.drafters.formats import check_vocabulary, fetch, read_eagle
from specdemo.drafters.law import Law
from specdemo.drafters.tree import BEAM, DEEPEST, children, dynamic_tree
from specdemo.target import HFTarget
from specdemo.types import DraftContext, DrafterStart, Proposal, Rng, Rows, SpecdemoError, Target, Verified

FIRST = 2  # position of the first token that a head can draft: it needs a token and the embedding of the next


class Eagle:
    """One run of one head of a bank. ``nodes``: size of its dynamic trees, 0: it drafts chains."""

    def __init__(self, bank: Bank, member: int, nodes: int, context: DraftContext) -> None:
        if bank not in context.shared:
            context.shared[bank] = bank.start(context.capacity, BEAM * DEEPEST)
        self.run: BankRun = context.shared[bank]
        self.member, self.nodes = member, nodes
        self.law = Law(context.transform, len(bank.embedding))
        self.text: list[int] = []

    @property
    def group(self) -> Hashable:
        """See :class:`Together`: one bank, one shape of drafts."""
        return self.run, self.nodes

    @torch.no_grad()
    def catch_up(self, verified: Verified) -> Rows | None:
        """Read committed tokens. What others of the bank have read already is not read again."""
        start = len(self.text)
        self.run.read(start, verified)
        self.text += verified.tokens
        if verified.probs is None:
            return None
        if not self.run.length:
            return Rows(tokens=(-1,))  # nothing to start from
        logits = self._judged(start)[self.member, None, :, self.run.columns.own(self.member).columns]
        rows = self._rows(logits, self.run.vocab(self.member), start)
        if rows.probs is not None:
            return Rows(rows.probs[0], vocab=rows.vocab)
        assert rows.children is not None
        return Rows(children=rows.children[0]) if self.nodes else Rows(tokens=tuple(rows.children[0, :, 0].tolist()))

    @torch.no_grad()
    def proposed(self, group: Sequence[Eagle], start: int) -> Rows:
        """See :class:`Together`."""
        members = [drafter.member for drafter in group]
        if not self.run.length:
            return Rows(children=torch.full((len(group), len(self.text) - start, 1), -1))
        logits = self._judged(start)
        chosen = logits if members == list(range(len(logits))) else logits[members]
        return self._rows(chosen, self.run.columns.ids, start)

    @torch.no_grad()
    def propose(self, k: int, rng: Rng) -> Proposal:
        """Draft a chain of ``k`` tokens, each drawn from the head's law after the run's sampling transforms, or a tree
        of that depth; nothing while the text is a single token, because the head has nothing to start from."""
        k = min(k, DEEPEST)
        if not self.run.length or k < 1:
            return Proposal(())
        return self._tree(k) if self.nodes else self._chain(k, rng)

    def observe(self, verified: Verified) -> None:
        """Nothing to learn."""

    def _judged(self, start: int) -> Tensor:
        first = max(start, FIRST)
        return self.run.judge(first)[:, : len(self.text) + 1 - first]  # others may have read more

    def _rows(self, logits: Tensor, vocab: Tensor | None, start: int) -> Rows:
        """What drafts would have begun with at the positions from ``start`` on.

        Args:
            logits: [members, n + 1, columns] of :meth:`BankRun.judge`. ``vocab``: target ids of its columns.
        """
        first, rows = max(start, FIRST), logits.flatten(0, 1)
        shape, early = logits.shape[:2], (0, 0, min(first, len(self.text)) - start, 0)
        contexts = (self.text[:i] for _ in logits for i in range(first, len(self.text) + 1))
        if not (self.nodes or self.law.transform.greedy):
            probs = self.law(rows, vocab, contexts).view(*shape, -1)[:, :-1]
            return Rows(F.pad(probs, early) if any(early) else probs, vocab=vocab)
        found = children(self.nodes, rows, vocab) if self.nodes else self.law.certain(rows, vocab, contexts)[:, None]
        return Rows(children=F.pad(found.view(*shape, -1)[:, :-1], early, value=-1))

    def _chain(self, k: int, rng: Rng) -> Proposal:
        run, member = self.run, self.member
        outputs, first = run.first(member)

        def step(i: int, token: int) -> Tensor:
            nonlocal outputs
            tokens = torch.tensor([token], device=outputs.device)
            outputs = run.extend(member, tokens, run.state(member, outputs), i, i)
            return run.logits(member, outputs)

        return self.law.chain(k, self.text, first, step, run.vocab(member), rng)

    def _tree(self, depth: int) -> Proposal:
        run, member = self.run, self.member
        outputs, first = run.first(member)
        sees = torch.zeros(1, 0, dtype=torch.bool, device=outputs.device)  # drafted slots on each expanded node's path

        def expand(level: int, tokens: Tensor, parents: Tensor) -> Tensor:
            nonlocal outputs, sees
            used, own = sees.shape[1], torch.eye(len(tokens), dtype=torch.bool, device=sees.device)
            sees = torch.cat([sees[parents], own], 1)
            outputs = run.extend(member, tokens, run.state(member, outputs)[parents], used, level, sees)
            return run.logits(member, outputs)

        return dynamic_tree(depth, self.nodes, first, expand, run.vocab(member))


def load(target: Target, *, model: str, member: str = "", nodes: int = 0, grow: bool = True) -> DrafterStart:
    """An EAGLE head: a published checkpoint (EAGLE-1, EAGLE-3, SpecForge, speculators), or a member of our own bank.

    Args:
        model: folder or Hub repository. ``member``: which head of a bank.
        nodes: size of EAGLE-2's dynamic trees; 0: chains.
        grow: a bank's heads may also draft tokens of the text that are not in their vocabulary.

    Raises:
        SpecdemoError: it cannot be loaded, or was made for another target.
    """
    if not isinstance(target, HFTarget):
        raise SpecdemoError("eagle drafts only for targets loaded through transformers.")
    folder = fetch(model)
    if is_bank(folder):
        key = ("bank", folder.resolve(), grow)
        if key not in target.shared:
            head = read_head(folder, target.tokenizer.hf)
            check_size(folder, head.config.target_size, target)
            target.shared[key] = _bank(target, head, grow)
        bank = target.shared[key]
        number = bank.join(read_member(folder, member, bank.head, target.lm_head))
    else:
        bank, number = _published(target, folder), 0
    return lambda context: Eagle(bank, number, nodes, context)


def _bank(target: HFTarget, head: EagleHead, grow: bool, embedding: Tensor | None = None) -> Bank:
    target.read_layers(head.config.layers)
    head.requires_grad_(False).to(target.device, target.dtype)
    own = target.embedding if embedding is None else embedding.to(target.device, target.dtype)
    return Bank(head, own, lambda: target.layer_columns(head.config.layers), target.lm_head if grow else None)


def _published(target: HFTarget, folder: Path) -> Bank:
    """A bank of one: a checkpoint in one of the published layouts."""
    check_vocabulary(target.tokenizer.hf, folder)
    found = read_eagle(folder, target.depth, target.hidden_size, len(target.embedding))
    head = EagleHead(found.config)
    head.load_state_dict(found.weights)
    bank = _bank(target, head, False, found.embedding)
    vocab = None if found.vocab is None else found.vocab.to(target.device)
    if found.config.draft_vocab_size is not None:
        lm_head: Tensor = head.get_parameter("lm_head.weight")
    else:
        lm_head = target.lm_head if vocab is None else target.lm_head[vocab]
    bank.join(Member(folder.name, None, vocab, lm_head))
    return bank
