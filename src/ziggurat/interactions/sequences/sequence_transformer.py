"""A transformer over the positions of a sequence and, if one is named, the target.

Shape legend: B rows, S positions, P = S positions or S + 1 with the target, D dims of a position's vector.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.core.errors import InvalidSection
from ziggurat.interactions.sequences.attention_heads import attend
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings


class SequenceTransformer(SequenceEncoder):
    """X = h + p with a learned p for each position; per layer Z = X + attention(LN(X)), then Z + feed-forward(LN(Z)).

    With a target, t + p_S is appended after the positions, as in BST, and its last state is the result. Without one the
    result is the mean of the last states. No norm follows the last layer, so the result starts out on the scale of the
    vectors it is made from, like the other features.

    Source: Vaswani et al., arXiv 1706.03762, in the pre-norm order of Xiong et al., arXiv 2002.04745; the target among
    the positions: Chen et al., "Behavior Sequence Transformer", arXiv 1905.06874, section 2.2.

    Args:
        config: the settings, listed below.
        positions: S.
        dim: D, a multiple of the heads.

    Raises:
        InvalidSection: it is not a multiple.
    """

    class Config(SequenceEncoderSettings):
        """A transformer encoder over the positions."""

        name: Literal["transformer"] = "transformer"

        target: str | None = None
        """The categorical feature that is the target, usually of the same table; null for the mean of the positions."""

        layers: Annotated[int, Field(ge=1)] = 1
        """Number of encoder layers."""

        heads: Annotated[int, Field(ge=1)] = 2
        """Attention heads per layer; their number divides the dim of a row."""

        feed_forward: Annotated[int, Field(ge=1)] = 64
        """Width of the hidden layer after each attention."""

        @property
        def target_feature(self) -> str | None:
            return self.target

        def build(self, positions: int, dim: int) -> SequenceTransformer:
            return SequenceTransformer(self, positions, dim)

    def __init__(self, config: SequenceTransformer.Config, positions: int, dim: int) -> None:
        super().__init__()
        if dim % config.heads:
            raise InvalidSection(
                "heads",
                f"{config.heads} heads cannot share rows of {dim} floats",
                "give a number of heads that divides the table's dim",
            )
        self.positions = positions
        self.out_features = dim
        self.with_target = config.target is not None
        self.place_PD = nn.Parameter(torch.empty(positions + self.with_target, dim))
        nn.init.normal_(self.place_PD, std=0.02)
        self.layers = nn.ModuleList(_Layer(dim, config.heads, config.feed_forward) for _ in range(config.layers))

    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        state_BPD, mask_BP = positions_BSD, mask_BS
        if self.with_target:
            assert target_BD is not None
            state_BPD = torch.cat([positions_BSD, target_BD.unsqueeze(1)], dim=1)
            mask_BP = nn.functional.pad(mask_BS, (0, 1), value=True)
        state_BPD = state_BPD + self.place_PD
        for layer in self.layers:
            state_BPD = layer(state_BPD, mask_BP)
        if self.with_target:
            return state_BPD[:, -1] * mask_BS.any(dim=1, keepdim=True)
        present_B1S = mask_BS.unsqueeze(1).to(state_BPD.dtype)
        return (present_B1S @ state_BPD).squeeze(1) / present_B1S.sum(2).clamp(min=1)

    def matmul_flops(self) -> int:
        positions, dim = self.place_PD.shape
        matrices = sum(parameter.numel() for parameter in self.layers.parameters() if parameter.ndim == 2)
        layers = 2 * positions * matrices + len(self.layers) * 4 * positions * positions * dim
        return layers + (0 if self.with_target else 2 * self.positions * dim)

    def elementwise_flops(self) -> int:
        """Counts the sum with the position vectors, two residual sums per layer, and the last division by the number of
        positions (or, with a target, the product with the mask)."""
        return self.place_PD.numel() * (1 + 2 * len(self.layers)) + self.out_features


class _Layer(nn.Module):
    """(B, P, D), mask (B, P) → (B, P, D): one encoder layer, norms first."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = 1 / math.sqrt(dim // heads)
        self.attention_norm = nn.LayerNorm(dim)
        self.queries_keys_values = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.feed_forward = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, state_BPD: Tensor, mask_BP: Tensor) -> Tensor:
        state_BPD = state_BPD + self._attend(self.attention_norm(state_BPD), mask_BP)
        return state_BPD + self.feed_forward(state_BPD)

    def _attend(self, normed_BPD: Tensor, mask_BP: Tensor) -> Tensor:
        return self.output(attend(self.queries_keys_values(normed_BPD), self.heads, self.scale, mask_BP))
