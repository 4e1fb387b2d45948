"""The sum of all pairwise products of the fields, in linear time.

Shape legend: B rows, F fields, D embedding dim.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ziggurat.interactions.block import Block


class FactorizationMachine(Block):
    """(B, F, D) → (B, 1, D): Σ_{i<j} v_i ⊙ v_j = ½ ((Σ_i v_i)² − Σ_i v_i²), squares element-wise.

    The sum over D of the output is the second-order term of a factorization machine, Σ_{i<j} ⟨v_i, v_j⟩, because each
    field has exactly one active feature. With a single field the output is zero.

    Source: Rendle, "Factorization Machines", ICDM 2010, lemma 3.1; kept as a vector as in He and Chua, "Neural
    Factorization Machines", SIGIR 2017, eq. 3 and 4.
    """

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.features = features
        self.dim = dim
        self.out_features = 1

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return cast("Any", _PairProducts.apply)(emb_BFD)

    def matmul_flops(self) -> int:
        return 0

    def elementwise_flops(self) -> int:
        """Counts, per dim: two sums of F numbers, F squares, then square, subtract and halve: 2(F − 1) + F + 3."""
        return (3 * self.features + 1) * self.dim


class _PairProducts(Function):
    """The formula above. The gradient of v_i is that of the output times Σ_j v_j − v_i, in two passes over the fields;
    autograd's own makes seven."""

    @staticmethod
    def forward(ctx: Any, emb_BFD: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride] - torch declares *args
        sum_B1D = emb_BFD.sum(1, keepdim=True)
        squares_B1D = emb_BFD.square().sum(1, keepdim=True)
        ctx.save_for_backward(emb_BFD, sum_B1D)
        return 0.5 * (sum_B1D.square() - squares_B1D)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_B1D: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        emb_BFD, sum_B1D = ctx.saved_tensors
        return (sum_B1D - emb_BFD).mul_(grad_B1D)
