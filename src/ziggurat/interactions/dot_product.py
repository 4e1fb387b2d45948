"""The dot product of every pair of fields.

Shape legend: B rows, F fields, D embedding dim, P = F(F − 1)/2 pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ziggurat.interactions.block import Block
from ziggurat.interactions.gram import gram


class DotProduct(Block):
    """A head: (B, F, D) → (B, P), the strict upper triangle of X Xᵀ, row by row: (0, 1), (0, 2), …, (F − 2, F − 1).

    The whole F×F product is computed, and less than half of it is kept, because on every device one batched matrix
    product is faster than gathering the pairs first. The FLOP count includes the whole product.

    Source: Naumov et al., "Deep Learning Recommendation Model", arXiv 1906.00091, section 2 (their code keeps the lower
    triangle, the same numbers in another order).

    Args:
        features: F, at least 2.
        dim: D.
    """

    pairs_P: Tensor

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        assert features >= 2, features
        self.features = features
        self.dim = dim
        self.out_features = features * (features - 1) // 2
        row_P, column_P = torch.triu_indices(features, features, offset=1)
        self.register_buffer("pairs_P", row_P * features + column_P, persistent=False)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return gram(emb_BFD).flatten(1).index_select(1, self.pairs_P)

    def matmul_flops(self) -> int:
        return 2 * self.features * self.features * self.dim
