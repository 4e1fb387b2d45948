"""The precision in which row tiers and the tower transform send rows and gradients between ranks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ziggurat.parallel.config import ParallelConfig, Precision

Kind = Literal["rows", "gradients"]
"""What is sent."""

_TYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Wire:
    """Encodes and decodes what is sent. All ranks decode the same bytes, the sender included, so copies stay equal.

    FP16 gradients are multiplied by a power of two, as :func:`~ziggurat.embeddings.torchrec_terms.codecs` does.
    """

    def __init__(self, parallel: ParallelConfig, batch_size: int) -> None:
        self._types = {"rows": _TYPES[parallel.forward_precision], "gradients": _TYPES[parallel.backward_precision]}
        fp16 = parallel.backward_precision == "fp16"
        self._factors = {"rows": 1.0, "gradients": 2.0 ** (batch_size.bit_length() - 1) if fp16 else 1.0}

    def encode(self, values: Tensor, kind: Kind) -> Tensor:
        """Returns what is sent for float32 values (N, D), or (N,): the values, or two bytes each (N, 2·D), as gloo
        sends no bfloat16."""
        dtype, factor = self._types[kind], self._factors[kind]
        if dtype is torch.float32:
            return values
        return (values * factor if factor != 1 else values).to(dtype).view(torch.uint8)

    def elements(self, kind: Kind) -> int:
        """Returns how many elements are sent for a value."""
        return 1 if self._types[kind] is torch.float32 else 2

    def decode(self, sent: Tensor, kind: Kind) -> Tensor:
        """Returns the float32 values of what was sent."""
        dtype, factor = self._types[kind], self._factors[kind]
        if dtype is torch.float32:
            return sent
        values = sent.view(dtype).float()
        return values.div_(factor) if factor != 1 else values
