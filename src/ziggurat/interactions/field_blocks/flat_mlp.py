"""An MLP over the whole row, as a block: the module that knows no structure.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.mlp import MLP


class FlatMLP(Block):
    """(B, F, D) → (B, F', D): MLP(vec(X)) laid out as F'×D.

    Args:
        config: as below.
        features: F.
        dim: D.
    """

    class Config(BlockSettings):
        """An MLP over the row laid flat."""

        name: Literal["mlp"] = "mlp"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Fields that the block emits."""

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
