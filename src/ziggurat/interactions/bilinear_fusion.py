"""Fuses two streams: a linear term of each, and a weighted sum of all products between their numbers.

Shape legend: B rows, N₁ and N₂ numbers of the streams, H heads, T outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.core.errors import InvalidSection
from ziggurat.interactions.block import Block


class BilinearFusion(Block):
    """(B, N₁), (B, N₂) → (B, T): b + w₁ᵀ x + w₂ᵀ y + Σ_h x_hᵀ W_h y_h, with x and y split into H heads.

    More heads mean fewer weights, H·(N₁/H)·(N₂/H) per output.

    Source: Mao et al., "FinalMLP", arXiv 2304.00902, eq. 7 to 10.

    Args:
        first: N₁.
        second: N₂.
        outputs: T.
        heads: H, which must divide N₁ and N₂.

    Raises:
        InvalidSection: H does not divide both.
    """

    def __init__(self, first: int, second: int, outputs: int, heads: int = 1) -> None:
        super().__init__()
        if first % heads or second % heads:
            raise InvalidSection(
                "heads",
                f"{heads} heads cannot share streams of {first} and {second} numbers",
                "give a number of heads that divides the last hidden width of both streams",
            )
        self.heads = heads
        self.out_features = outputs
        self.first, self.second = nn.Linear(first, outputs), nn.Linear(second, outputs, bias=False)
        self.pairs_HIJT = nn.Parameter(torch.empty(heads, first // heads, second // heads * outputs))
        nn.init.xavier_normal_(self.pairs_HIJT)

    def forward(self, first_BN: Tensor, second_BN: Tensor) -> Tensor:
        first_HBI = first_BN.unflatten(1, (self.heads, -1)).transpose(0, 1)
        second_BHJ = second_BN.unflatten(1, (self.heads, -1))
        half_HBJT = torch.bmm(first_HBI, self.pairs_HIJT)
        half_BHJT = half_HBJT.transpose(0, 1).unflatten(2, (second_BHJ.shape[2], self.out_features))
        pairs_BT = (half_BHJT * second_BHJ.unsqueeze(3)).sum((1, 2))
        return self.first(first_BN) + self.second(second_BN) + pairs_BT

    def matmul_flops(self) -> int:
        linear = (self.first.in_features + self.second.in_features) * self.out_features
        return 2 * (linear + self.pairs_HIJT.numel())

    def elementwise_flops(self) -> int:
        """Counts the products with the second stream, their sum, and the sum of the three terms."""
        return (2 * self.second.in_features + 1) * self.out_features
