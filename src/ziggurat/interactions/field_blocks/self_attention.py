"""Self-attention over the fields of a row: one transformer encoder layer.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, H heads, E = D / H dims of a head.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from ziggurat.core.errors import InvalidSection
from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.sequences.attention_heads import attend


class SelfAttention(Block):
    """(B, F, D) → (B, F', D): Z = LN(X + attention(X)), then LN(Z + feed-forward(Z)), then a mixture of fields to F'.

    attention(X) = softmax(Q Kᵀ / √E) V for each head, the heads concatenated, times an output matrix. Without the
    feed-forward part it is AutoInt's interacting layer, except for the norm. There is no dropout, and no mask because
    every row has all fields.

    Source: Vaswani et al., arXiv 1706.03762, section 3.1 and 3.2 (post-norm, as there); as a module: Zhang et al.,
    "DHEN", arXiv 2203.11014, section 3.2.

    Args:
        config: the settings, listed below.
        features: F.
        dim: D, a multiple of the heads.

    Raises:
        InvalidSection: it is not a multiple.
    """

    class Config(BlockSettings):
        """A transformer encoder layer over the fields."""

        name: Literal["self_attention"] = "self_attention"

        outputs: Annotated[int, Field(ge=1)] | None = None
        """Number of fields that the block emits; null for as many as it reads, without a mixture."""

        heads: Annotated[int, Field(ge=1)] = 2
        """Number of attention heads; it divides embeddings.dim."""

        feed_forward: Annotated[int, Field(ge=0)] = 64
        """Width of the hidden layer after the attention; 0 leaves the feed-forward part out."""

        def build(self, features: int, dim: int) -> SelfAttention:
            return SelfAttention(self, features, dim)

    def __init__(self, config: SelfAttention.Config, features: int, dim: int) -> None:
        super().__init__()
        if dim % config.heads:
            raise InvalidSection(
                "heads",
                f"{config.heads} heads cannot share an embedding dim of {dim}",
                "give a number of heads that divides embeddings.dim",
            )
        self.features, self.dim, self.heads = features, dim, config.heads
        self.scale = 1 / math.sqrt(dim // config.heads)
        self.out_features = config.outputs or features
        self.queries_keys_values = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim)
        self.feed_forward = None
        if config.feed_forward:
            hidden = config.feed_forward
            self.feed_forward = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, dim))
            self.feed_forward_norm = nn.LayerNorm(dim)
        self.mixture = None if config.outputs is None else LinearCompression(features, dim, config.outputs)
        self._hidden = config.feed_forward

    def forward(self, emb_BFD: Tensor) -> Tensor:
        state_BFD = self.attention_norm(emb_BFD + self._attend(emb_BFD))
        if self.feed_forward is not None:
            state_BFD = self.feed_forward_norm(state_BFD + self.feed_forward(state_BFD))
        return state_BFD if self.mixture is None else self.mixture(state_BFD)

    def _attend(self, emb_BFD: Tensor) -> Tensor:
        return self.output(attend(self.queries_keys_values(emb_BFD), self.heads, self.scale))

    def matmul_flops(self) -> int:
        projections = 2 * self.features * self.dim * (4 * self.dim + 2 * self._hidden)
        attention = 2 * 2 * self.features * self.features * self.dim
        return projections + attention + (0 if self.mixture is None else self.mixture.matmul_flops())

    def elementwise_flops(self) -> int:
        """Counts the residual sums."""
        return self.features * self.dim * (1 if self.feed_forward is None else 2)
