"""Learned linear mixtures of fields: the linear block, also used in shortcuts that change the number of fields.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.block import Block, BlockSettings


class LinearCompression(Block):
    """(B, F, D) → (B, F', D): Y = W X with W ∈ ℝ^{F'×F}, no bias. It mixes fields, not the dims within a field.

    Source: Zhang et al., "Wukong", arXiv 2403.02545, section 3.4 (its LCB); the linear module and the shortcut of
    Zhang et al., "DHEN", arXiv 2203.11014, section 3.2.

    Args:
        features: F.
        dim: D; only the cost depends on it.
        outputs: F'.
    """

    class Config(BlockSettings):
        """Linear mixtures of the fields."""

        name: Literal["linear"] = "linear"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        def build(self, features: int, dim: int) -> LinearCompression:
            return LinearCompression(features, dim, self.outputs)

    def __init__(self, features: int, dim: int, outputs: int) -> None:
        super().__init__()
        self.features = features
        self.dim = dim
        self.out_features = outputs
        self.mixture = nn.Linear(features, outputs, bias=False)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return mix_fields(self.mixture.weight, emb_BFD)

    def matmul_flops(self) -> int:
        return 2 * self.features * self.out_features * self.dim


def mix_fields(weight_OF: Tensor, emb_BFD: Tensor) -> Tensor:
    """Returns W X for every row's X: (B, O, D).

    It computes one small product per row rather than one tall product over all B·D columns. The tall product would
    first copy X to have its fields last, in forward and backward, and return a transposed tensor.
    """
    return torch.bmm(weight_OF.expand(emb_BFD.shape[0], -1, -1), emb_BFD)
