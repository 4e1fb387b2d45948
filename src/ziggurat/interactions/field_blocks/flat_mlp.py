"""An MLP over the flattened row, as a block.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.mlp import MLP


class FlatMLP(Block):
    """(B, F, D) → (B, F', D): MLP(vec(X)) reshaped to F'×D.

    Args:
        config: the settings, listed below.
        features: F.
        dim: D.
    """

    class Config(BlockSettings):
        """An MLP over the flattened row."""

        name: Literal["mlp"] = "mlp"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        mlp: MLP.Config = MLP.Config(hidden=(256,))
        """Hidden layers."""

        def build(self, features: int, dim: int) -> FlatMLP:
            return FlatMLP(self, features, dim)

    def __init__(self, config: FlatMLP.Config, features: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.out_features = config.outputs
        self.mlp = MLP(features * dim, config.mlp, config.outputs * dim)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return self.mlp(emb_BFD).unflatten(1, (self.out_features, self.dim))

    def matmul_flops(self) -> int:
        return self.mlp.matmul_flops()

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return self.mlp.elementwise_flops()
