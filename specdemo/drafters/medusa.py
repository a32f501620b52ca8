"""Medusa heads (arXiv 2401.10774): each drafts from the target's hidden state alone, not knowing the others' tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specdemo.drafters.head_configs import MedusaConfig
from specdemo.drafters.hydra import DraftHeads, HeadBank, ResBlock, filled, hf_target
from specdemo.drafters.product import Product
from specdemo.types import DrafterStart, Target


class MedusaHeads(DraftHeads):
    """Medusa's network; names of parameters are those of published files: ``i.j.linear``, then ``i.layers``."""

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config, self.num_heads = config, config.num_heads
        size = config.hidden_size
        for i in range(config.num_heads):
            blocks = [ResBlock(size, size) for _ in range(config.num_layers)]
            self.add_module(str(i), nn.ModuleList([*blocks, nn.Linear(size, config.vocab_size, bias=False)]))

    def read(self, head: int, state: Tensor, path: Tensor) -> Tensor:
        """See :meth:`DraftHeads.read`; the path is not looked at."""
        x = state
        for block in list(self._layers(head))[:-1]:
            x = block(x)
        return x

    def logits(self, head: int, read: Tensor, lm_head: Product | None = None) -> Tensor:
        """See :meth:`DraftHeads.logits`."""
        logits: Tensor = self._layers(head)[-1](read)
        return logits

    def _layers(self, head: int) -> nn.ModuleList:
        layers = self._modules[str(head)]
        assert isinstance(layers, nn.ModuleList)
        return layers


def load(target: Target, *, model: str, nodes: int = 0) -> DrafterStart:
    """Medusa heads: several tokens from one hidden state of the target, each head on its own.

    Args:
        model: a folder or a Hub repository.
        nodes: size of the trees it drafts; 0: chains.

    Raises:
        SpecdemoError: the heads cannot be loaded, or were made for another target.
    """
    from specdemo.drafters.formats import check_vocabulary, fetch, read_medusa

    target = hf_target(target, "medusa")
    folder = fetch(model)
    check_vocabulary(target.tokenizer.hf, folder)
    read = read_medusa(folder, target.model.config.get_text_config().hidden_size, target.vocab_size)
    with torch.device("meta"):
        heads = MedusaHeads(read.config)
    return HeadBank(target, filled(heads, read.weights)).start(nodes)
