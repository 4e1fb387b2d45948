"""DCN-V2: a cross network for explicit interactions and an MLP for the rest.

Shape legend: B rows, F fields, D embedding dim, T tasks, N numbers of a flattened row.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ziggurat.interactions.cross import Cross
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.models.model import Model, ModelDims, ModelSettings, flatten_inputs


class DCNv2(Model):
    """Stacked: logits = W·MLP(cross(x)) + b. Parallel: logits = W·[cross(x); MLP(x)] + b. x is the flattened row.

    Source: Wang et al., "DCN V2", arXiv 2008.13535, section 3 and figure 1. No mixture of low-rank experts.
    """

    class Config(ModelSettings):
        """The cross network, the deep part and how they are combined."""

        depths: ClassVar[tuple[int, ...]] = (1, 2, 4)

        name: Literal["dcn_v2"] = "dcn_v2"

        cross_layers: Annotated[int, Field(ge=0)] = 3
        """Number of cross layers; explicit interactions reach degree cross_layers + 1."""

        rank: Annotated[int, Field(ge=1)] | None = None
        """Rank of the cross layers' matrices; null for full matrices."""

        structure: Literal["stacked", "parallel"] = "stacked"
        """Whether the deep part reads the cross network's output or the input."""

        deep: MLP.Config = MLP.Config()
        """Hidden layers of the MLP."""

        def deeper(self, times: int) -> DCNv2.Config:
            return self.model_copy(update={"cross_layers": times * self.cross_layers})

        def build(self, dims: ModelDims) -> DCNv2:
            return DCNv2(self, dims)

    def __init__(self, config: DCNv2.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.stacked = config.structure == "stacked"
        self.cross = Cross(dims.flat, 1, config.cross_layers, config.rank)
        self.deep = MLP(dims.flat, config.deep)
        width = self.deep.out_features + (0 if self.stacked else dims.flat)
        self.last = Linear(width, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        flat_BN = flatten_inputs(dense_BF, emb_BFD)
        crossed_BN = self.cross(flat_BN)
        if self.stacked:
            return self.last(self.deep(crossed_BN))
        return self.last(torch.cat([crossed_BN, self.deep(flat_BN)], dim=1))
