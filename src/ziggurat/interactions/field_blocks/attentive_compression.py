"""The matrix that compresses a low-rank factorization machine, made anew for every row from the row itself.

Shape legend: B rows, F fields, D embedding dim, K columns of the matrix, C compressed fields.
"""

from __future__ import annotations

from torch import Tensor

from ziggurat.interactions.block import Block
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.mlp import MLP


class AttentiveCompression(Block):
    """(B, F, D) → (B, F, K): Y = MLP(vec(W X)) laid out as F×K, with W ∈ ℝ^{C×F}.

    It tells a factorization machine which mixtures of fields to multiply with, by what the row holds. The MLP reads the
    *compressed* row, so that its first layer costs C·D and not F·D inputs.

    Source: Zhang et al., "Wukong", arXiv 2403.02545, section 3.5 ("attentive"). The paper leaves C
    open; here it is K.

    Args:
        features: F.
        dim: D.
        rank: K.
        config: hidden layers of the MLP.
    """

    def __init__(self, features: int, dim: int, rank: int, config: MLP.Config) -> None:
        super().__init__()
        self.rank = rank
        self.out_features = features
        self.compression = LinearCompression(features, dim, rank)
        self.mlp = MLP(rank * dim, config, features * rank)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return self.mlp(self.compression(emb_BFD)).unflatten(1, (self.out_features, self.rank))

    def matmul_flops(self) -> int:
        return self.compression.matmul_flops() + self.mlp.matmul_flops()
