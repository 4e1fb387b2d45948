"""The Gram matrix X Xᵀ, with a backward pass that does half of autograd's work.

Shape legend: B rows of the batch, M vectors, N numbers of a vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gram(vectors_BMN: Tensor) -> Tensor:
    """(B, M, N) → (B, M, M): returns X Xᵀ.

    Autograd would differentiate the two factors separately and compute G X + Gᵀ X with two products, the second of them
    transposed. The backward pass here is the single product (G + Gᵀ) X. It can be differentiated only once.
    """
    return _Gram.apply(vectors_BMN)  # pyright: ignore[reportReturnType]


class _Gram(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors_BMN: Tensor) -> Tensor:
        gram_BMM = torch.bmm(vectors_BMN, vectors_BMN.transpose(1, 2))
        # Under autocast the product is bf16, and backward, which runs without autocast, needs operands of one dtype.
        ctx.save_for_backward(vectors_BMN.to(gram_BMM.dtype))
        ctx.dtype = vectors_BMN.dtype
        return gram_BMM

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient_BMM: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (vectors_BMN,) = ctx.saved_tensors
        return torch.bmm(gradient_BMM + gradient_BMM.transpose(1, 2), vectors_BMN).to(ctx.dtype)
