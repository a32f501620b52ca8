"""EAGLE heads as drafters: EAGLE-1 and -3 chains, EAGLE-2 dynamic trees (arXiv 2401.15077, 2406.16858, 2503.01840)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from specdemo.drafters.bank import Bank, BankRun, Member
from specdemo.drafters.bank_files import check_size, is_bank, read_head, read_member
from specdemo.drafters.eagle_head import EagleHead
from specdemo.drafters.formats import check_vocabulary, fetch, read_eagle
from specdemo.drafters.law import Law
from specdemo.drafters.tree import BEAM, DEEPEST, children, dynamic_tree
from specdemo.target import HFTarget
from specdemo.types import DraftContext, DrafterStart, Proposal, Rng, Rows, SpecdemoError, Target, Verified


class Eagle:
    """One run of one head of a bank. ``nodes``: size of its dynamic trees, 0: it drafts chains."""

    def __init__(self, bank: Bank, member: int, nodes: int, context: DraftContext) -> None:
        if bank not in context.shared:
            context.shared[bank] = bank.start(context.capacity, BEAM * DEEPEST)
        self.run: BankRun = context.shared[bank]
        self.member, self.nodes = member, nodes
        self.law = Law(context.transform, len(bank.embedding))
        self.text: list[int] = []
        self.ahead: Tensor | None = None  # [1, hidden] raw output for the last committed pair
        self.first: Tensor | None = None  # [1, draft vocabulary] its logits, once they are known

    @torch.no_grad()
    def catch_up(self, verified: Verified) -> Rows | None:
        """Read committed tokens. What others of the bank have read already is not read again."""
        before, start = self.ahead, len(self.text)
        self.run.read(start, verified)
        self.text += verified.tokens
        if verified.probs is None or before is None:
            self.ahead, self.first = self.run.last(self.member) if self.run.length else None, None
            return None if verified.probs is None else Rows(tokens=(-1,) * len(verified.tokens))
        n, known = len(verified.tokens), self.run.extra.known
        own = torch.cat([self._first(before), self.run.latest_logits(self.member, n)])
        outputs = torch.cat([before, self.run.outputs(self.member, n)])
        self.ahead, self.first = outputs[-1:], own[-1:]
        logits = self.run.at(self.member, outputs[:-1], own[:-1], start)
        vocab = self.run.vocab(self.member, known)
        if self.nodes:
            return Rows(children=children(self.nodes, logits, vocab))
        contexts = (self.text[: start + i] for i in range(n))
        return self.law.rows(logits, vocab, contexts)

    @torch.no_grad()
    def propose(self, k: int, rng: Rng) -> Proposal:
        """Draft a chain of ``k`` tokens, each drawn from the head's law after the run's sampling transforms, or a tree
        of that depth; nothing while the text is a single token, because the head has nothing to start from."""
        k = min(k, DEEPEST)
        if self.ahead is None or k < 1:
            return Proposal(())
        return self._tree(self.ahead, k) if self.nodes else self._chain(self.ahead, k, rng)

    def observe(self, verified: Verified) -> None:
        """Nothing to learn."""

    def _first(self, ahead: Tensor) -> Tensor:
        if self.first is None:
            self.first = self.run.own_logits(self.member, ahead)
        return self.first

    def _chain(self, outputs: Tensor, k: int, rng: Rng) -> Proposal:
        run, member, known = self.run, self.member, self.run.extra.known

        def step(i: int, token: int) -> Tensor:
            nonlocal outputs
            at = torch.tensor([i], device=outputs.device)
            outputs = run.extend(member, torch.tensor([token], device=at.device), run.state(member, outputs), i, at)
            return run.logits(member, outputs, known)

        first = run.widened(member, outputs, self._first(outputs), known)
        return self.law.chain(k, self.text, first, step, run.vocab(member, known), rng)

    def _tree(self, outputs: Tensor, depth: int) -> Proposal:
        run, member, known = self.run, self.member, self.run.extra.known
        sees = torch.zeros(1, 0, dtype=torch.bool, device=outputs.device)  # drafted slots on each expanded node's path

        def expand(level: int, tokens: Tensor, parents: Tensor) -> Tensor:
            nonlocal outputs, sees
            used, own = sees.shape[1], torch.eye(len(tokens), dtype=torch.bool, device=sees.device)
            sees = torch.cat([sees[parents], own], 1)
            states = run.state(member, outputs)[parents]
            outputs = run.extend(member, tokens, states, used, torch.full_like(tokens, level), sees)
            return run.logits(member, outputs, known)

        first = run.widened(member, outputs, self._first(outputs), known)
        return dynamic_tree(depth, self.nodes, first, expand, run.vocab(member, known))


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
