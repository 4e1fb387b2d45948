"""Wukong: layers of a factorization machine block parallel to a linear compression; each layer doubles the degree.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.wukong_layer import check_outputs, wukong_layer
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models.heads import HeadConfig
from ziggurat.models.model import ModelDims, ModelSettings
from ziggurat.models.stacked import StackedModel


class Wukong(StackedModel):
    """logits = head(vec(X_N)), X_{i+1} = LN(concat(FMB(X_i), LCB(X_i)) + X_i).

    Where the numbers of fields differ, the shortcut X_i is compressed linearly. Layer i contains interactions of every
    degree from 1 to 2^i. The model is built as a DHEN of two blocks,
    :class:`~ziggurat.interactions.field_blocks.factorization_machine_block.FactorizationMachineBlock` and
    :class:`~ziggurat.interactions.field_blocks.linear_compression.LinearCompression`.

    Source: Zhang et al., "Wukong: Towards a Scaling Law for Large-Scale Recommendation", arXiv 2403.02545, section 3.
    To scale the model, increase ``layers`` first, then the blocks.
    """

    class Config(ModelSettings):
        """The layers, the bottom MLP before them and the head after them."""

        depths: ClassVar[tuple[int, ...]] = (1, 2, 4)
        widening: ClassVar[float] = 2**0.5

        name: Literal["wukong"] = "wukong"

        layers: Annotated[int, Field(ge=1)] = 2
        """Number of interaction layers (the paper's l)."""

        fm_outputs: Annotated[int, Field(ge=0)] = 8
        """Number of fields that each factorization machine block emits (n_F); 0 leaves the block out."""

        linear_outputs: Annotated[int, Field(ge=0)] = 8
        """Number of fields that each linear compression emits (n_L); 0 leaves it out."""

        rank: Annotated[int, Field(ge=1)] | None = 16
        """Number of field mixtures that every field is multiplied with (k); null for all pairs of fields."""

        attention: MLP.Config | None = None
        """Hidden layers of an MLP that computes the mixtures from each row; null for the same mixtures in all rows."""

        fm_mlp: MLP.Config = MLP.Config(hidden=(256,))
        """Hidden layers of the factorization machine blocks."""

        shortcut: bool = True
        """Whether each layer's input is added to its output."""

        bottom: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers over the dense features; one linear layer to their vectors follows."""

        dense_vectors: Annotated[int, Field(ge=1)] = 1
        """Number of fields that the dense features together become."""

        head: HeadConfig = SharedBottom.Config()
        """Maps the flattened last layer to the logits."""

        def deeper(self, times: int) -> Wukong.Config:
            return self.model_copy(update={"layers": times * self.layers})

        @model_validator(mode="after")
        def _some_block(self) -> Wukong.Config:
            check_outputs(self.fm_outputs, self.linear_outputs)
            return self

        def layer(self) -> Ensemble.Config:
            """Returns the config of one layer, which is an ensemble of blocks."""
            return wukong_layer(
                self.fm_outputs, self.linear_outputs, self.rank, self.fm_mlp, attention=self.attention,
                shortcut=self.shortcut,
            )  # fmt: skip

        def build(self, dims: ModelDims) -> Wukong:
            return Wukong(self, dims)

    def __init__(self, config: Wukong.Config, dims: ModelDims) -> None:
        layers = [config.layer()] * config.layers
        super().__init__(layers, config.bottom, config.dense_vectors, config.head, dims)
