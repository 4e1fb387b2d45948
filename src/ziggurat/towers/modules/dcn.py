"""DCN's tower module: a cross network over the tower, and one vector of it.

Shape legend: B rows, F fields of the tower, N their width, D width of the output.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ziggurat.interactions.cross import Cross
from ziggurat.interactions.linear import Linear
from ziggurat.towers.modules.module import TowerModule, TowerModuleSettings


class DCNTower(TowerModule):
    """(B, F, N) → (B, 1, D): a cross network over the flattened fields, then a linear map to one vector.

    Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.2; they use D = 128.
    """

    class Config(TowerModuleSettings):
        """The cross network and the width of the output."""

        name: Literal["dcn"] = "dcn"

        layers: Annotated[int, Field(ge=0)] = 1
        """Number of cross layers."""

        rank: Annotated[int, Field(ge=1)] | None = None
        """Rank of the cross layers' matrices; null for full matrices."""

        width: Annotated[int, Field(ge=1)] = 128
        """Width of the output (D)."""

        def out_features(self, features: int) -> int:
            del features
            return 1

        def out_dim(self, dim: int) -> int:
            del dim
            return self.width

        def build(self, features: int, dim: int) -> DCNTower:
            return DCNTower(self, features, dim)

    def __init__(self, config: DCNTower.Config, features: int, dim: int) -> None:
        super().__init__()
        self.out_features, self.out_dim = 1, config.width
        self.cross = Cross(features * dim, 1, config.layers, config.rank)
        self.last = Linear(features * dim, config.width)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return self.last(self.cross(emb_BFD.flatten(1))).unsqueeze(1)

    def matmul_flops(self) -> int:
        return self.cross.matmul_flops() + self.last.matmul_flops()

    def elementwise_flops(self) -> int:
        return self.cross.elementwise_flops()
