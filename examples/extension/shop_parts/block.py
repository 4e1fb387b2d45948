"""A block for a layer of DHEN: fields, each scaled by a gate that the whole row opens or closes.

Shape legend: B rows, F fields, D embedding dim.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.extension import Block, BlockSettings


class FieldGates(Block):
    """(B, F, D) → (B, F, D): Y_f = 2 σ(W₂ relu(W₁ m))_f X_f, with m_f the mean of field f's vector.

    Source: Huang et al., "FiBiNET", RecSys 2019, section 3.3 (its SENet), with a sigmoid so that no field vanishes at
    the start.
    """

    class Config(BlockSettings):
        """Gates over fields."""

        reduction: Annotated[int, Field(ge=1)] = 2
        """How many times fewer hidden units than fields there are."""

        def build(self, features: int, dim: int) -> FieldGates:
            return FieldGates(self, features, dim)

    def __init__(self, config: FieldGates.Config, features: int, dim: int) -> None:
        super().__init__()
        self.features, self.dim, self.out_features = features, dim, features
        self.hidden = max(1, features // config.reduction)
        self.squeeze = nn.Linear(features, self.hidden)
        self.excite = nn.Linear(self.hidden, features)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        gates_BF = 2 * torch.sigmoid(self.excite(torch.relu(self.squeeze(emb_BFD.mean(2)))))
        return gates_BF.unsqueeze(2) * emb_BFD

    def matmul_flops(self) -> int:
        return 4 * self.features * self.hidden

    def elementwise_flops(self) -> int:
        return self.features * self.dim
