"""AutoInt's interacting layers: self-attention over the fields with a projected residual.

Shape legend: B rows, F fields, D embedding dim, H heads, E dims of a head.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.sequences.attention_heads import attend


class Interacting(Block):
    """(B, F, D) → (B, F, H·E): per layer ReLU(attention(X) + W_res X).

    attention(X) = softmax(Q Kᵀ) V for each head; the paper does not divide the scores by √E.

    Source: Song et al., "AutoInt", arXiv 1810.11921, eq. 5 to 8.

    Args:
        features: F.
        dim: D.
        layers: number of layers, at least 1; from the second on, a layer reads H·E dims.
        heads: H.
        head_dim: E.
        scale: whether to divide the scores by √E.
    """

    def __init__(self, features: int, dim: int, layers: int, heads: int, head_dim: int, scale: bool) -> None:
        super().__init__()
        assert layers >= 1, layers
        self.features, self.heads = features, heads
        self.scale = 1 / math.sqrt(head_dim) if scale else 1.0
        self.out_features = features
        self.width = heads * head_dim
        widths = [dim] + [self.width] * (layers - 1)
        self.query_key_values = nn.ModuleList(nn.Linear(width, 3 * self.width, bias=False) for width in widths)
        self.residuals = nn.ModuleList(nn.Linear(width, self.width, bias=False) for width in widths)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        state_BFD = emb_BFD
        for projection, residual in zip(self.query_key_values, self.residuals, strict=True):
            attended_BFD = attend(projection(state_BFD), self.heads, self.scale)
            state_BFD = (attended_BFD + residual(state_BFD)).relu()
        return state_BFD

    def matmul_flops(self) -> int:
        projections = 2 * self.features * sum(parameter.numel() for parameter in self.parameters())
        return projections + 4 * self.features * self.features * self.width * len(self.residuals)

    def elementwise_flops(self) -> int:
        """Counts the residual sums."""
        return self.features * self.width * len(self.residuals)
