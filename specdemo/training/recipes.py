"""What ``specdemo train`` does, step by step: features, whole heads, specialists, Hydra heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from specdemo.drafters.bank_files import general, read_head, read_member, write_head, write_hydra, write_member
from specdemo.drafters.eagle_head import Delta, EagleConfig, EagleHead
from specdemo.drafters.head_configs import HydraConfig
from specdemo.drafters.hydra import HydraHeads
from specdemo.target import HFTarget
from specdemo.training.features import Features, load
from specdemo.training.heads import Corpus, Recipe, Teacher, eagle_states, hydra_states, train

VOCABULARY = 8192  # tokens a general head drafts
OWN = 2048  # of its domain's likeliest tokens a specialist drafts in any case


def feature_layers(target: HFTarget) -> tuple[int, ...]:
    """The hidden states that features keep: a low one, a late one, and the last, as the LM head sees it."""
    return target.depth // 4 + 1, target.depth * 4 // 5, target.depth


def train_head(
    target: HFTarget,
    features: Path,
    domains: Sequence[str],
    bank: Path,
    name: str,
    recipe: Recipe,
    start: Path | None = None,
) -> None:
    """Train a general EAGLE-3 head on these domains, and make a bank of it with one member, ``name``.

    Args:
        start: a bank whose common head it begins as; None: it begins from nothing.
    """
    texts = {domain: load(features, domain) for domain in domains}
    layers = next(iter(texts.values())).layers
    head = new_head(target, layers, recipe.seed) if start is None else read_head(start, target.tokenizer.hf)
    vocab = vocabulary(list(texts.values()), target.vocab_size, VOCABULARY)
    teacher = Teacher.of(target.embedding, target.lm_head, vocab)
    corpus = Corpus(texts, head.config.layers, held_out=False)
    train(head, eagle_states(head, None), corpus, teacher, recipe, _checkpoint(bank, name))
    write_head(bank, head, target.tokenizer.hf)
    write_member(bank, name, vocab, None, told(corpus, recipe))


def train_specialist(
    target: HFTarget,
    features: Path,
    domains: Sequence[str],
    bank: Path,
    name: str,
    recipe: Recipe,
    rank: int,
    size: int,
) -> None:
    """Train a low-rank delta of a bank's head on one domain or a few.

    Its vocabulary: their ``size`` likeliest tokens, if the general head drafts them, too, or if they are among their
    ``OWN`` likeliest. (Judging a bank reads a row of the LM head for every token that any member drafts.)
    """
    head = read_head(bank, target.tokenizer.hf).requires_grad_(False)
    texts = {domain: load(features, domain) for domain in domains}
    torch.manual_seed(recipe.seed)
    delta = new_delta(head, rank)
    likeliest, own = (vocabulary(list(texts.values()), target.vocab_size, n) for n in (size, OWN))
    common = read_member(bank, general(bank), head, target.lm_head).vocab
    assert common is not None  # ours have one
    vocab = likeliest[torch.isin(likeliest, torch.cat([common.cpu(), own]))]
    teacher = Teacher.of(target.embedding, target.lm_head, vocab)
    corpus = Corpus(texts, head.config.layers, held_out=False)
    train(delta, eagle_states(head, delta), corpus, teacher, recipe, _checkpoint(bank, name))
    write_member(bank, name, vocab, delta, told(corpus, recipe))


def train_hydra(
    target: HFTarget, features: Path, domains: Sequence[str], folder: Path, recipe: Recipe, heads: int
) -> None:
    """Train ``heads`` Hydra heads on these domains, all of them: a head is a step."""
    recipe = replace(recipe, steps=heads)
    texts = {domain: load(features, domain) for domain in domains}
    torch.manual_seed(recipe.seed)
    network = HydraHeads(hydra_config(target, heads), own_lm_head=False, norm=True)
    vocab = vocabulary(list(texts.values()), target.vocab_size, VOCABULARY)
    teacher = Teacher.of(target.embedding, target.lm_head, vocab)
    corpus = Corpus(texts, (target.depth,), held_out=False)
    train(network, hydra_states(network), corpus, teacher, recipe, _checkpoint(folder, "heads"))
    write_hydra(folder, network, vocab, target.tokenizer.hf, told(corpus, recipe))


def new_head(target: HFTarget, layers: Sequence[int], seed: int) -> EagleHead:
    """An untrained EAGLE-3 head of the target's own width."""
    c = target.model.config.get_text_config()
    torch.manual_seed(seed)
    head = EagleHead(
        EagleConfig(
            hidden_size=c.hidden_size,
            intermediate_size=c.intermediate_size,
            num_heads=c.num_attention_heads,
            num_kv_heads=c.num_key_value_heads,
            head_dim=getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
            target_size=c.hidden_size,
            layers=tuple(layers),
            vocab_size=target.vocab_size,
            fc_norm=True,  # raw hidden states have outlier channels, which slow training down several times
            mixed_residual=True,  # learns faster, above all the later steps (docs/log.md)
        )
    )
    for parameter in head.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=0.02)
    return head


def new_delta(head: EagleHead, rank: int) -> Delta:
    """A delta that changes nothing yet."""
    delta = Delta(head.config, rank)
    with torch.no_grad():
        delta.norm.copy_(head.get_parameter("norm.weight"))
    return delta


def hydra_config(target: HFTarget, heads: int) -> HydraConfig:
    """Hydra++ heads of two residual blocks behind a prefix layer as wide as the target's own layers."""
    c = target.model.config.get_text_config()
    return HydraConfig(
        hidden_size=c.hidden_size,
        num_heads=heads,
        num_layers=2,
        prefix=True,
        intermediate_size=c.intermediate_size,
        attention_heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        vocab_size=target.vocab_size,
    )


def vocabulary(texts: Sequence[Features], vocab_size: int, size: int) -> Tensor:
    """[size] the tokens that answers are made of most often, each domain counting alike, in order of their ids."""
    share = torch.zeros(vocab_size, dtype=torch.float64)
    for f in texts:
        written = f.tokens[f.answers].long()
        share += torch.bincount(written, minlength=vocab_size) / max(1, len(written))
    kept = share.argsort(descending=True)[:size]
    return kept[share[kept] > 0].sort().values


def told(corpus: Corpus, recipe: Recipe) -> dict[str, object]:
    """What a head was trained on, for its card."""
    return {
        "domains": corpus.domains,
        "texts": len(corpus.starts),
        "tokens": int(corpus.lengths.sum()),
        "positions": recipe.positions,
        "steps": recipe.steps,
        "lr": recipe.lr,
    }


def _checkpoint(folder: Path, name: str) -> Path:
    return folder / "training" / f"{name}.pt"
