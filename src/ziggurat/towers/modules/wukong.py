"""Wukong's layers as a tower module.

Shape legend: B rows, F fields of the tower, N their width, O output fields, D their width.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.stack import LayerStack
from ziggurat.interactions.field_blocks.wukong_layer import check_outputs, wukong_layer
from ziggurat.interactions.mlp import MLP
from ziggurat.towers.modules.module import TowerModule, TowerModuleSettings


class WukongTower(TowerModule):
    """(B, F, N) → (B, n_F + n_L, D): layers of a factorization machine block beside a linear compression.

    Our own addition: the layers are those of :class:`~ziggurat.models.wukong.Wukong`, over the fields of one tower. A
    linear map of each output field to D follows if D differs from N.
    """

    class Config(TowerModuleSettings):
        """The layers."""

        name: Literal["wukong"] = "wukong"

        layers: Annotated[int, Field(ge=1)] = 1
        """Number of interaction layers."""

        fm_outputs: Annotated[int, Field(ge=0)] = 4
        """Number of fields that each factorization machine block emits; 0 leaves the block out."""

        linear_outputs: Annotated[int, Field(ge=0)] = 4
        """Number of fields that each linear compression emits; 0 leaves it out."""

        rank: Annotated[int, Field(ge=1)] | None = 8
        """Number of field mixtures that every field is multiplied with; null for all pairs of fields."""

        fm_mlp: MLP.Config = MLP.Config(hidden=(128,))
        """Hidden layers of the factorization machine blocks."""

        width: Annotated[int, Field(ge=1)] | None = None
        """Width of the outputs (D); null for that of the embeddings."""

        @model_validator(mode="after")
        def _some_block(self) -> WukongTower.Config:
            check_outputs(self.fm_outputs, self.linear_outputs)
            return self

        def layer(self) -> Ensemble.Config:
            """Returns the config of one layer."""
            return wukong_layer(self.fm_outputs, self.linear_outputs, self.rank, self.fm_mlp)

        def out_features(self, features: int) -> int:
            del features
            return self.fm_outputs + self.linear_outputs

        def out_dim(self, dim: int) -> int:
            return self.width or dim

        def build(self, features: int, dim: int) -> WukongTower:
            return WukongTower(self, features, dim)

    def __init__(self, config: WukongTower.Config, features: int, dim: int) -> None:
        super().__init__()
        self.out_dim = config.out_dim(dim)
        self.stack = LayerStack([config.layer()] * config.layers, features, dim)
        self.out_features = self.stack.out_features
        self.last = nn.Linear(dim, self.out_dim) if self.out_dim != dim else None

    def forward(self, emb_BFD: Tensor) -> Tensor:
        out_BOD = self.stack(emb_BFD)
        return out_BOD if self.last is None else self.last(out_BOD)

    def matmul_flops(self) -> int:
        last = 0 if self.last is None else 2 * self.out_features * self.last.in_features * self.out_dim
        return self.stack.matmul_flops() + last

    def elementwise_flops(self) -> int:
        return self.stack.elementwise_flops()
