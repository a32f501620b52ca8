"""Linear layers as drafters multiply with them, laid out for the processor.

A head's products have few rows, so reading the weights is what costs. Where a CPU multiplies blocks of bfloat16,
weights laid out in advance (as in the target's compiled code) need not be rearranged at every call.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F


class Product:
    """x -> x W^T + b, with weights that do not change any more.

    Args:
        weight: [out, in]. ``bias``: [out].
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight.detach().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        one = x.numel() == x.shape[-1]
        if self._blocked and one:  # blocks would be almost empty
            y: Tensor = torch.mv(self.weight, x.flatten()).view(*x.shape[:-1], -1)
            return y if self.bias is None else y + self.bias
        if self._packed is None or one:
            return F.linear(x, self.weight, self.bias)
        y = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return y

    @property
    def _blocked(self) -> bool:
        return self.weight.device.type == "cpu" and self.weight.dtype == torch.bfloat16 and BLOCKS

    @cached_property
    def _packed(self) -> Tensor | None:
        """The weight in oneDNN's layout; None where that is of no use, or where this torch does not offer it."""
        try:
            packed: Tensor | None = torch.ops.mkldnn._reorder_linear_weight(self.weight) if self._blocked else None
        except (AttributeError, RuntimeError):
            packed = None
        return packed


BLOCKS: bool = torch.cpu._is_avx512_bf16_supported()  # the processor multiplies blocks of bfloat16
