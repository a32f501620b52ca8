"""Shapes of Hydra and Medusa heads, as read from published checkpoints (formats.py) and built in hydra.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HydraConfig:
    """Shape of a Hydra head (arXiv 2402.05109).

    Attributes:
        hidden_size: of the target. ``vocab_size``: the target's vocabulary.
        num_heads: draft heads: longest draft after the target's own next token.
        num_layers: residual blocks of each head; all but the first are one block, applied repeatedly.
        prefix: a decoder layer of its own over the target's hidden states (Hydra++, "prefix-mlp"). The fields from
            ``intermediate_size`` to ``rope_theta`` describe that layer; they are 0 without it.
        attention_heads, kv_heads: heads of the prefix layer's queries, and of its keys and values.
        grounded: heads read the embeddings of the draft tokens before them. The only kind that is supported.
    """

    hidden_size: int
    num_heads: int
    num_layers: int
    prefix: bool
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    grounded: bool = True


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Shape of Medusa heads (arXiv 2401.10774): ``num_heads`` heads of ``num_layers`` residual blocks each.

    Attributes:
        hidden_size: of the target. ``vocab_size``: the target's vocabulary.
    """

    hidden_size: int
    num_heads: int
    num_layers: int
    vocab_size: int
