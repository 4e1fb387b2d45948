"""Computes the mixture matrix of a low-rank factorization machine from each row.

Shape legend: B rows, F fields, D embedding dim, K columns of the matrix, C compressed fields.
"""

from __future__ import annotations

from torch import Tensor

from ziggurat.interactions.block import Block
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.mlp import MLP


class AttentiveCompression(Block):
    """(B, F, D) → (B, F, K): Y = MLP(vec(W X)) reshaped to F×K, with W ∈ ℝ^{C×F}.

    Y determines, for each row, which mixtures of fields a factorization machine multiplies with. The MLP reads the
    *compressed* row, so its first layer has C·D inputs instead of F·D.

    Source: Zhang et al., "Wukong", arXiv 2403.02545, section 3.5 ("attentive"). The paper does not specify C; here
    C = K.

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

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return self.mlp.elementwise_flops()
