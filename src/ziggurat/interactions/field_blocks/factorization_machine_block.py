"""Wukong's factorization machine block: an MLP turns products of fields into new fields.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, K columns of the factorization machine's matrix.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from ziggurat.interactions.block import Block, BlockSettings
from ziggurat.interactions.field_blocks.field_products import FieldProducts
from ziggurat.interactions.mlp import MLP


class FactorizationMachineBlock(Block):
    """(B, F, D) → (B, F', D): reshape(MLP(LN(flatten(FM(X))))), FM(X) the F×K matrix of :class:`FieldProducts`.

    Source: Zhang et al., "Wukong", arXiv 2403.02545, eq. 2. The layer norm covers the whole flattened matrix; the MLP
    has no norm of its own unless its config sets one.

    Args:
        config: the settings, listed below.
        features: F.
        dim: D.
    """

    class Config(BlockSettings):
        """Products of fields and the MLP that turns them into fields."""

        name: Literal["factorization_machine"] = "factorization_machine"

        outputs: Annotated[int, Field(ge=1)] = 8
        """Number of fields that the block emits."""

        rank: Annotated[int, Field(ge=1)] | None = 16
        """Number of field mixtures that every field is multiplied with; null for all pairs of fields."""

        attention: MLP.Config | None = None
        """Hidden layers of an MLP that computes the mixtures from each row; null for the same mixtures in all rows."""

        mlp: MLP.Config = MLP.Config(hidden=(256,))
        """Hidden layers between the products and the emitted fields."""

        @model_validator(mode="after")
        def _attention_needs_a_rank(self) -> FactorizationMachineBlock.Config:
            if self.attention is not None and self.rank is None:
                raise ValueError("attention computes the low-rank form's mixtures: set rank, or leave attention out")
            return self

        def build(self, features: int, dim: int) -> FactorizationMachineBlock:
            return FactorizationMachineBlock(self, features, dim)

    def __init__(self, config: FactorizationMachineBlock.Config, features: int, dim: int) -> None:
        super().__init__()
        self.dim = dim
        self.out_features = config.outputs
        self.products = FieldProducts(features, dim, config.rank, config.attention)
        width = features * self.products.columns
        self.norm = nn.LayerNorm(width)
        self.mlp = MLP(width, config.mlp, config.outputs * dim)

    def forward(self, emb_BFD: Tensor) -> Tensor:
        products_BN = self.products(emb_BFD).flatten(1)
        return self.mlp(self.norm(products_BN)).unflatten(1, (self.out_features, self.dim))

    def matmul_flops(self) -> int:
        return self.products.matmul_flops() + self.mlp.matmul_flops()

    def elementwise_flops(self) -> int:
        """Counts those of the products, and the sums of hidden layers that add their input."""
        return self.products.elementwise_flops() + self.mlp.elementwise_flops()
