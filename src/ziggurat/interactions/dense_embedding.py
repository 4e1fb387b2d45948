"""Embeds dense features jointly: a bottom MLP over all of them.

Shape legend: B rows, F dense features, n embeddings, D embedding dim.
"""

from __future__ import annotations

from torch import Tensor

from ziggurat.interactions.block import Block
from ziggurat.interactions.mlp import MLP


class DenseEmbedding(Block):
    """dense_BF → (B, n, D): an MLP with n·D linear outputs, split into n vectors that join the ids' embeddings.

    Source: the bottom MLP of Naumov et al., arXiv 1906.00091, section 2, where n = 1. Theirs ends in a ReLU; ours ends
    in the linear layer, so that its dot products with the ids' signed embeddings can take either sign.

    Args:
        dense: F, at least 1.
        outputs: n.
        dim: D.
        config: the hidden layers.
    """

    def __init__(self, dense: int, outputs: int, dim: int, config: MLP.Config) -> None:
        super().__init__()
        self.dim = dim
        self.out_features = outputs
        self.mlp = MLP(dense, config, outputs * dim)

    def forward(self, dense_BF: Tensor) -> Tensor:
        return self.mlp(dense_BF).unflatten(1, (self.out_features, self.dim))

    def matmul_flops(self) -> int:
        return self.mlp.matmul_flops()

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return self.mlp.elementwise_flops()
