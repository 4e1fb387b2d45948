"""A stack of ensemble layers.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.field_blocks.ensemble import Ensemble


class LayerStack(Block):
    """(B, F, D) → (B, F', D): layers in sequence, each reading the output of the one before.

    Args:
        layers: configs of the layers, in order; without any, the fields stay as they are.
        features: F.
        dim: D.
    """

    def __init__(self, layers: Sequence[Ensemble.Config], features: int, dim: int) -> None:
        super().__init__()
        built: list[Ensemble] = []
        for config in layers:
            built.append(Ensemble(config, features, dim))
            features = built[-1].out_features
        self.layers = nn.ModuleList(built)
        self.out_features = features

    def forward(self, emb_BFD: Tensor) -> Tensor:
        for layer in self.layers:
            emb_BFD = layer(emb_BFD)
        return emb_BFD

    def matmul_flops(self) -> int:
        return sum(layer.matmul_flops() for layer in self.layers if isinstance(layer, Ensemble))

    def elementwise_flops(self) -> int:
        return sum(layer.elementwise_flops() for layer in self.layers if isinstance(layer, Ensemble))
