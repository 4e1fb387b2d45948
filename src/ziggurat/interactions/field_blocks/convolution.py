"""A convolution along the embedding dim, with the fields as channels.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, W taps.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator
from torch import Tensor, nn

from ziggurat.interactions.block import Block, BlockSettings


class Convolution(Block):
    """(B, F, D) → (B, F', D): y_{o,d} = b_o + Σ_f Σ_t K_{o,f,t} x_{f, d+t−(W−1)/2}, zero-padded.

    With one tap it is :class:`LinearCompression` with a bias.

    Source: Zhang et al., "DHEN", arXiv 2203.11014, section 3.2. Theirs slides over dims and fields. The order of fields
    has no meaning, so ours slides along the dims alone and treats the fields as channels.

    Args:
        config: the settings, listed below.
        features: F.
        dim: D.
    """

    class Config(BlockSettings):
        """A convolution along the embedding dim."""

        name: Literal["convolution"] = "convolution"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        taps: Annotated[int, Field(ge=1)] = 3
        """Number of neighbouring dims that one output reads; must be odd."""

        @field_validator("taps")
        @classmethod
        def _odd(cls, taps: int) -> int:
            if taps % 2 == 0:
                raise ValueError(f"taps must be odd, so that the window is centred on a dim; received {taps}")
            return taps

        def build(self, features: int, dim: int) -> Convolution:
            return Convolution(self, features, dim)

    def __init__(self, config: Convolution.Config, features: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.out_features = config.outputs
        self.kernel = nn.Conv1d(features, config.outputs, config.taps, padding=config.taps // 2)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return self.kernel(emb_BFD)

    def matmul_flops(self) -> int:
        return 2 * self.kernel.weight.numel() * self.dim
