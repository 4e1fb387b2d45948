"""Wukong: factorization machine blocks beside linear compressions, stacked, so that every layer doubles the degree.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models.heads import HeadConfig
from ziggurat.models.model import ModelDims, ModelSettings
from ziggurat.models.stacked import StackedModel


class Wukong(StackedModel):
    """logits = head(vec(X_N)), X_{i+1} = LN(concat(FMB(X_i), LCB(X_i)) + X_i), X_i compressed where counts differ.

    Layer i holds interactions of every degree from 1 to 2^i. It is a DHEN of two blocks,
    :class:`~ziggurat.interactions.field_blocks.factorization_machine_block.FactorizationMachineBlock` and
    :class:`~ziggurat.interactions.field_blocks.linear_compression.LinearCompression`, and is built as one.

    Source: Zhang et al., "Wukong: Towards a Scaling Law for Large-Scale Recommendation", arXiv 2403.02545, section 3.
    Scale ``layers`` first, then the blocks.
    """

    class Config(ModelSettings):
        """The layers, and what stands before and behind them."""

        depths: ClassVar[tuple[int, ...]] = (1, 2, 4)
        widening: ClassVar[float] = 2**0.5

        name: Literal["wukong"] = "wukong"

        layers: Annotated[int, Field(ge=1)] = 2
        """Interaction layers (the paper's l)."""

        fm_outputs: Annotated[int, Field(ge=0)] = 8
        """Fields that each factorization machine block emits (n_F); 0 leaves the block out."""

        linear_outputs: Annotated[int, Field(ge=0)] = 8
        """Fields that each linear compression emits (n_L); 0 leaves it out."""

        rank: Annotated[int, Field(ge=1)] | None = 16
        """Mixtures of fields that every field is multiplied with (k); null for all pairs of fields."""

        attention: MLP.Config | None = None
        """Hidden layers of an MLP that makes the mixtures from each row; null for the same mixtures in all rows."""

        fm_mlp: MLP.Config = MLP.Config(hidden=(256,))
        """Hidden layers of the factorization machine blocks."""

        shortcut: bool = True
        """Whether each layer's input is added to its output."""

        bottom: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers over the dense features; one linear layer to their vectors follows."""

        dense_vectors: Annotated[int, Field(ge=1)] = 1
        """Fields that the dense features become, together."""

        head: HeadConfig = SharedBottom.Config()
        """From the last layer, laid flat, to the logits."""

        def deeper(self, times: int) -> Wukong.Config:
            return self.model_copy(update={"layers": times * self.layers})

        @model_validator(mode="after")
        def _some_block(self) -> Wukong.Config:
            if self.fm_outputs + self.linear_outputs == 0:
                raise ValueError("fm_outputs and linear_outputs are both 0, so that a layer would be empty")
            return self

        def layer(self) -> Ensemble.Config:
            """One layer, as the ensemble that it is."""
            blocks: list[ComposableBlock] = []
            if self.fm_outputs:
                blocks.append(
                    FactorizationMachineBlock.Config(
                        outputs=self.fm_outputs, rank=self.rank, attention=self.attention, mlp=self.fm_mlp
                    )
                )
            if self.linear_outputs:
                blocks.append(LinearCompression.Config(outputs=self.linear_outputs))
            return Ensemble.Config(blocks=tuple(blocks), combine="concat", shortcut=self.shortcut)

        def build(self, dims: ModelDims) -> Wukong:
            return Wukong(self, dims)

    def __init__(self, config: Wukong.Config, dims: ModelDims) -> None:
        layers = [config.layer()] * config.layers
        super().__init__(layers, config.bottom, config.dense_vectors, config.head, dims)
