"""DHEN's cross module: second moments of the dims over the fields, mixed into new fields.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.field_blocks.linear_compression import mix_fields
from ziggurat.interactions.gram import gram


class GramCross(Block):
    """(B, F, D) → (B, F', D): Y = W (Xᵀ X) + b, with W ∈ ℝ^{F'×D} and b ∈ ℝ^{F'×D}.

    Xᵀ X = Σ_f x_f x_fᵀ is D×D. DCN's skip connection is left out because the layer around the block has one.

    Source: Zhang et al., "DHEN", arXiv 2203.11014, section 3.2 (X Xᵀ W + b in the paper, where X is dim × fields).

    Args:
        config: the settings, listed below.
        features: F.
        dim: D.
    """

    class Config(BlockSettings):
        """Second moments of the dims over the fields, mixed."""

        name: Literal["cross"] = "cross"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        def build(self, features: int, dim: int) -> GramCross:
            return GramCross(self, features, dim)

    def __init__(self, config: GramCross.Config, features: int, dim: int) -> None:
        super().__init__()
        self.features, self.dim = features, dim
        self.out_features = config.outputs
        self.mixture = nn.Linear(dim, config.outputs, bias=False)
        self.bias_FD = nn.Parameter(torch.zeros(config.outputs, dim))

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return mix_fields(self.mixture.weight, gram(emb_BFD.transpose(1, 2))) + self.bias_FD

    def matmul_flops(self) -> int:
        return 2 * self.dim * self.dim * (self.features + self.out_features)
