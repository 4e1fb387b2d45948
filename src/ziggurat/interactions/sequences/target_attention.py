"""Pools a sequence with weights that depend on the target, so that relevant past actions count more.

Shape legend: B rows, S positions, D dims of a position's vector.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import AfterValidator
from torch import Tensor

from ziggurat.interactions.mlp import MLP
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings, masked_softmax


def _no_batch_norm(mlp: MLP.Config) -> MLP.Config:
    if mlp.norm == "batch":
        raise ValueError("norm: batch would count positions that a row does not have in its statistics; use layer")
    return mlp


class TargetAttention(SequenceEncoder):
    """Σ_s w_s h_s with w_s = MLP(h_s, t, h_s − t, h_s ∘ t): DIN's local activation unit.

    The weights are not normalised, so their sum expresses how strongly the history supports the target.

    Source: Zhou et al., "Deep Interest Network", arXiv 1706.06978, section 4.3; difference and product as in the
    authors' code.

    Args:
        config: the settings, listed below.
        positions: S.
        dim: D.
    """

    class Config(SequenceEncoderSettings):
        """DIN's attention to the target."""

        name: Literal["target_attention"] = "target_attention"

        target: str
        """The categorical feature that is the target; it usually shares the sequence's table."""

        mlp: Annotated[MLP.Config, AfterValidator(_no_batch_norm)] = MLP.Config(hidden=(36,), activation="leaky_relu")
        """Hidden layers of the MLP that computes a position's weight."""

        normalise: bool = False
        """Whether the weights pass through a softmax over the positions; in the paper they do not."""

        @property
        def target_feature(self) -> str | None:
            return self.target

        def build(self, positions: int, dim: int) -> TargetAttention:
            return TargetAttention(self, positions, dim)

    def __init__(self, config: TargetAttention.Config, positions: int, dim: int) -> None:
        super().__init__()
        self.positions = positions
        self.normalise = config.normalise
        self.out_features = dim
        self.mlp = MLP(4 * dim, config.mlp, 1)

    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        assert target_BD is not None
        target_BSD = target_BD.unsqueeze(1).expand_as(positions_BSD)
        pairs = (positions_BSD, target_BSD, positions_BSD - target_BSD, positions_BSD * target_BSD)
        scores_BS = self.mlp(torch.cat(pairs, dim=2).flatten(0, 1)).view(mask_BS.shape)
        weights_BS = masked_softmax(scores_BS, mask_BS) if self.normalise else scores_BS * mask_BS
        return (weights_BS.unsqueeze(1) @ positions_BSD).squeeze(1)

    def matmul_flops(self) -> int:
        return self.positions * (self.mlp.matmul_flops() + 2 * self.out_features)

    def elementwise_flops(self) -> int:
        """Counts the differences and products."""
        return 2 * self.positions * self.out_features
