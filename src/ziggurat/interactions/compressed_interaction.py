"""xDeepFM's compressed interaction network: products of fields per dim, one degree higher in each layer.

Shape legend: B rows, F fields, D embedding dim, M maps of a layer, N maps of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from ziggurat.interactions.block import Block


class CompressedInteraction(Block):
    """(B, F, D) → (B, N, D): x^k_m = Σ_i Σ_j W^k_{m,i,j} (x^{k−1}_i ⊙ x⁰_j), the maps of all layers concatenated.

    Summed over D, a layer's maps are xDeepFM's p⁺. A layer is computed as one matrix product over (i, j), without an
    activation, as in the paper's experiments.

    Source: Lian et al., "xDeepFM", arXiv 1803.05170, eq. 6 and 7.

    Args:
        features: F.
        dim: D.
        layers: M of each layer; at least one layer.
    """

    def __init__(self, features: int, dim: int, layers: Sequence[int]) -> None:
        super().__init__()
        assert layers, "at least one layer"
        self.features, self.dim = features, dim
        self.out_features = sum(layers)
        self.kernels = nn.ModuleList(
            nn.Linear(before * features, maps, bias=False) for before, maps in pairwise((features, *layers))
        )

    def forward(self, emb_BFD: Tensor) -> Tensor:
        start_BDF = emb_BFD.transpose(1, 2)
        state_BDM, layers = start_BDF, list[Tensor]()
        for kernel in self.kernels:
            products_BDN = (state_BDM.unsqueeze(3) * start_BDF.unsqueeze(2)).flatten(2)
            state_BDM = kernel(products_BDN)
            layers.append(state_BDM)
        return torch.cat(layers, dim=2).transpose(1, 2)

    def matmul_flops(self) -> int:
        return sum(2 * kernel.weight.numel() for kernel in self._linears()) * self.dim

    def elementwise_flops(self) -> int:
        """Counts the products of fields."""
        return sum(kernel.in_features for kernel in self._linears()) * self.dim

    def _linears(self) -> list[nn.Linear]:
        return [kernel for kernel in self.kernels if isinstance(kernel, nn.Linear)]
