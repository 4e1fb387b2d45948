"""Embeds dense features separately: each feature scales a learned vector of its own.

Shape legend: B rows, F dense features, D embedding dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.interactions.block import Block


class NumericEmbedding(Block):
    """dense_BF → (B, F, D): e_f = x_f · v_f, as a factorization machine embeds a real-valued feature.

    Initial v_f are normal with a standard deviation of 0.01, like the rows of the embedding tables.

    Source: Rendle, "Factorization Machines", ICDM 2010, eq. 1 with x_f real.

    Args:
        dense: F, at least 1.
        dim: D.
    """

    def __init__(self, dense: int, dim: int) -> None:
        super().__init__()
        assert dense >= 1, dense
        self.out_features = dense
        self.vectors_FD = nn.Parameter(torch.empty(dense, dim))
        nn.init.normal_(self.vectors_FD, std=0.01)

    def forward(self, dense_BF: Tensor) -> Tensor:
        return dense_BF.unsqueeze(-1) * self.vectors_FD

    def matmul_flops(self) -> int:
        return 0

    def elementwise_flops(self) -> int:
        return self.vectors_FD.numel()
