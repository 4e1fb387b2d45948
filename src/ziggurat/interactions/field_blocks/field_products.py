"""A factorization machine's matrix: products of every field with every other, or with a few mixtures of fields.

Shape legend: B rows, F fields, D embedding dim, K mixtures of fields (the rank).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.field_blocks.attentive_compression import AttentiveCompression
from ziggurat.interactions.field_blocks.linear_compression import mix_fields
from ziggurat.interactions.gram import gram
from ziggurat.interactions.mlp import MLP


class FieldProducts(Block):
    """(B, F, D) → (B, F, K): X Xᵀ with K = F, or, with a rank, X (Xᵀ Y) with Y ∈ ℝ^{F×K}.

    The low-rank form multiplies Xᵀ Y first, so it costs O(F·K·D) and never builds the F×F matrix. Y is a parameter, or
    computed from each row by :class:`AttentiveCompression`. A static Y starts with a standard deviation of F^−½, so
    that a mixture of F fields has about the norm of one field; with unit variance X Xᵀ Y would grow with F.

    Source: Zhang et al., "Wukong", arXiv 2403.02545, section 3.5 ("optimized FM").

    Args:
        features: F.
        dim: D.
        rank: K, or None for all products.
        attention: hidden layers of the MLP that computes Y from the row; None for one Y for all rows.
    """

    mixtures_FK: nn.Parameter | None

    def __init__(self, features: int, dim: int, rank: int | None = None, attention: MLP.Config | None = None) -> None:
        super().__init__()
        assert rank is not None or attention is None, "attention computes Y, which only the low-rank form has"
        self.features, self.dim, self.rank = features, dim, rank
        self.out_features = features
        self.columns = features if rank is None else rank
        self.attention = None
        self.mixtures_FK = None
        if rank is not None and attention is not None:
            self.attention = AttentiveCompression(features, dim, rank, attention)
        elif rank is not None:
            self.mixtures_FK = nn.Parameter(torch.randn(features, rank) * features**-0.5)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        if self.attention is not None:
            return torch.bmm(emb_BFD, torch.bmm(emb_BFD.transpose(1, 2), self.attention(emb_BFD)))
        if self.mixtures_FK is not None:
            return torch.bmm(emb_BFD, mix_fields(self.mixtures_FK.T, emb_BFD).transpose(1, 2))
        return gram(emb_BFD)

    def matmul_flops(self) -> int:
        products = 2 * self.features * self.columns * self.dim
        if self.rank is None:
            return products
        return 2 * products + (0 if self.attention is None else self.attention.matmul_flops())

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return 0 if self.attention is None else self.attention.elementwise_flops()
