"""A sequence encoder: recent positions count more, by a half-life that is learned.

Shape legend: B rows, S positions, D dims of a position's vector.
"""

from __future__ import annotations

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn

from ziggurat.extension import SequenceEncoder, SequenceEncoderSettings


class Recency(SequenceEncoder):
    """(B, S, D) → (B, D): Σ_s w_s x_s / Σ_s w_s over present positions, w_s = 2^(−s / h), position 0 the most recent.

    A row without any position gives zeros.
    """

    class Config(SequenceEncoderSettings):
        """An exponentially weighted mean."""

        half_life: PositiveFloat = 4.0
        """Positions after which a weight has halved, at the start of training."""

        def build(self, positions: int, dim: int) -> Recency:
            return Recency(self, positions, dim)

    def __init__(self, config: Recency.Config, positions: int, dim: int) -> None:
        super().__init__()
        self.positions, self.dim, self.out_features = positions, dim, 1
        self.log_half_life = nn.Parameter(torch.tensor(math.log(config.half_life)))

    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        del target_BD
        age_S = torch.arange(positions_BSD.shape[1], dtype=positions_BSD.dtype, device=positions_BSD.device)
        weights_BS = torch.exp2(-age_S / self.log_half_life.exp()) * mask_BS
        total_B1 = weights_BS.sum(1, keepdim=True)
        shares_BS = weights_BS / torch.where(total_B1 > 0, total_B1, torch.ones_like(total_B1))
        return torch.bmm(shares_BS.unsqueeze(1), positions_BSD).squeeze(1)

    def matmul_flops(self) -> int:
        return 2 * self.positions * self.dim
