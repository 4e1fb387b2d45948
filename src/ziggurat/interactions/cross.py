"""The cross network of DCN-V2: bounded-degree polynomials of the input, one degree per layer.

Shape legend: B rows, F fields, D embedding dim, N = F·D inputs, R rank.
"""

from __future__ import annotations

from torch import Tensor, nn

from ziggurat.interactions.block import Block


class Cross(Block):
    """(B, F, D) → (B, F, D), over the flattened x₀ ∈ ℝᴺ; for a flat input (B, N), pass features = N and dim = 1.

    Full:      x_{l+1} = x₀ ⊙ (W_l x_l + b_l) + x_l
    Low rank:  x_{l+1} = x₀ ⊙ (U_l (V_lᵀ x_l) + b_l) + x_l,   U_l, V_l ∈ ℝ^{N×R}

    Source: Wang et al., "DCN V2", arXiv 2008.13535, eq. 1 and 2. No mixture of experts and no non-linearity in the
    low-rank space (their eq. 3 and 4).

    Args:
        features: F.
        dim: D; F·D is at least 1.
        layers: number of cross layers; the output is a polynomial of degree layers + 1. Zero is the identity.
        rank: R, or None for full matrices. A rank below N / 2 saves work.
    """

    def __init__(self, features: int, dim: int, layers: int, rank: int | None = None) -> None:
        super().__init__()
        self.width = features * dim
        assert self.width >= 1, (features, dim)
        self.rank = rank
        self.out_features = features
        self.layers = nn.ModuleList(_affine(self.width, rank) for _ in range(layers))

    def forward(self, inputs: Tensor) -> Tensor:
        start_BN = inputs.flatten(1)
        state_BN = start_BN
        for affine in self.layers:
            state_BN = start_BN * affine(state_BN) + state_BN
        return state_BN.view_as(inputs)

    def matmul_flops(self) -> int:
        per_layer = self.width * self.width if self.rank is None else 2 * self.width * self.rank
        return 2 * per_layer * len(self.layers)

    def elementwise_flops(self) -> int:
        """Counts the product with x₀ and the residual sum of each layer."""
        return 2 * self.width * len(self.layers)


def _affine(width: int, rank: int | None) -> nn.Module:
    """x ↦ W x + b, or x ↦ U (Vᵀ x) + b: the first layer's weight is Vᵀ (R, N), the second's is U (N, R)."""
    if rank is None:
        return nn.Linear(width, width)
    return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))
