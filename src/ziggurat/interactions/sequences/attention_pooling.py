"""Pools a sequence by a learned query; a position's score depends on its own vector alone.

Shape legend: B rows, S positions, D dims of a position's vector, H width of the hidden layer.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings, masked_softmax


class AttentionPooling(SequenceEncoder):
    """Σ_s a_s h_s with a = softmax over the positions of uᵀ tanh(W h_s + b), W ∈ ℝ^{H×D}.

    Source: Yang et al., "Hierarchical Attention Networks for Document Classification", NAACL 2016, eq. 5 to 7.

    Args:
        config: the settings, listed below.
        positions: S.
        dim: D.
    """

    class Config(SequenceEncoderSettings):
        """Additive attention with a learned query."""

        name: Literal["attention"] = "attention"

        hidden: Annotated[int, Field(ge=1)] = 32
        """Width H of the hidden layer that computes a position's score."""

        def build(self, positions: int, dim: int) -> AttentionPooling:
            return AttentionPooling(self, positions, dim)

    def __init__(self, config: AttentionPooling.Config, positions: int, dim: int) -> None:
        super().__init__()
        self.positions = positions
        self.out_features = dim
        self.hidden = nn.Linear(dim, config.hidden)
        self.query = nn.Linear(config.hidden, 1, bias=False)

    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        del target_BD
        scores_BS = self.query(torch.tanh(self.hidden(positions_BSD))).squeeze(2)
        shares_B1S = masked_softmax(scores_BS, mask_BS).unsqueeze(1)
        return (shares_B1S @ positions_BSD).squeeze(1)

    def matmul_flops(self) -> int:
        scores = 2 * self.hidden.weight.numel() + 2 * self.query.weight.numel()
        return self.positions * (scores + 2 * self.out_features)
