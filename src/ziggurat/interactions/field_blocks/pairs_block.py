"""DLRM's interaction as a block: an MLP turns the dot products of all pairs of fields into new fields.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, P = F(F − 1)/2 pairs.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.dot_product import DotProduct
from ziggurat.interactions.mlp import MLP


class PairsBlock(Block):
    """(B, F, D) → (B, F', D): MLP(⟨x_i, x_j⟩ for i < j), reshaped to F'×D.

    Source: Zhang et al., "DHEN", arXiv 2203.11014, section 3.2 (the dot-product module: products, then an MLP).

    Args:
        config: the settings, listed below.
        features: F, at least 2.
        dim: D.

    Raises:
        ConfigError: there are fewer than two fields, hence no pair.
    """

    class Config(BlockSettings):
        """Dot products of all pairs of fields and the MLP that turns them into fields."""

        name: Literal["dot_product"] = "dot_product"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        mlp: MLP.Config = MLP.Config(hidden=(256,))
        """Hidden layers between the products and the emitted fields."""

        def build(self, features: int, dim: int) -> PairsBlock:
            return PairsBlock(self, features, dim)

    def __init__(self, config: PairsBlock.Config, features: int, dim: int) -> None:
        super().__init__()
        if features < 2:
            raise ConfigError(
                f"dot_product multiplies pairs of fields, and there is only {features}",
                "declare more features, or use another block: cross, linear, mlp",
            )
        self.dim = dim
        self.out_features = config.outputs
        self.dots = DotProduct(features, dim)
        self.mlp = MLP(self.dots.out_features, config.mlp, config.outputs * dim)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        return self.mlp(self.dots(emb_BFD)).unflatten(1, (self.out_features, self.dim))

    def matmul_flops(self) -> int:
        return self.dots.matmul_flops() + self.mlp.matmul_flops()

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return self.mlp.elementwise_flops()
