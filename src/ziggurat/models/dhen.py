"""DHEN: ensembles of interaction modules, stacked.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ziggurat.core.errors import within
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import repeated
from ziggurat.models.heads import HeadConfig
from ziggurat.models.model import ModelDims, ModelSettings
from ziggurat.models.stacked import StackedModel


class DHEN(StackedModel):
    """logits = head(vec(layer_N(… layer_1(X)))).

    Each layer is an :class:`~ziggurat.interactions.field_blocks.ensemble.Ensemble`: all of the same blocks, or, with
    ``stack``, each of its own, as an architecture search finds them.

    Dense features enter as ``dense_vectors`` fields from a bottom MLP. ``pairs`` adds a factorization machine to the
    logits, which the paper does not have.

    Source: Zhang et al., "DHEN", arXiv 2203.11014, section 3.
    """

    class Config(ModelSettings):
        """The layer, how often it is stacked, the bottom MLP before the stack and the head after it."""

        depths: ClassVar[tuple[int, ...]] = (1, 2, 4)
        widening: ClassVar[float] = 2**0.5

        name: Literal["dhen"] = "dhen"

        layer: Ensemble.Config = Ensemble.Config(
            blocks=(PairsBlock.Config(outputs=8), LinearCompression.Config(outputs=8))
        )
        """The blocks of every layer, side by side."""

        layers: Annotated[int, Field(ge=1)] = 2
        """Number of stacked layers."""

        stack: tuple[Ensemble.Config, ...] | None = None
        """Layers that differ, in order, in place of ``layer`` and ``layers``. An empty list leaves the fields as they
        are, for the head alone."""

        bottom: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers over the dense features; one linear layer to their vectors follows."""

        dense_vectors: Annotated[int, Field(ge=1)] = 1
        """Number of fields that the dense features together become."""

        pairs: bool = False
        """Adds the products of all pairs of fields to each logit, Σ_{i<j} ⟨x_i, x_j⟩, beside the stack: the
        factorization machine of a DeepFM."""

        head: HeadConfig = SharedBottom.Config()
        """Maps the flattened last layer to the logits."""

        def deeper(self, times: int) -> DHEN.Config:
            if self.stack is not None:
                return self.model_copy(update={"stack": repeated(self.stack, times)})
            return self.model_copy(update={"layers": times * self.layers})

        def build(self, dims: ModelDims) -> DHEN:
            return DHEN(self, dims)

    def __init__(self, config: DHEN.Config, dims: ModelDims) -> None:
        same = config.stack is None
        layers = [config.layer] * config.layers if config.stack is None else list(config.stack)
        with within("layer" if same else "stack"):
            super().__init__(layers, config.bottom, config.dense_vectors, config.head, dims, pairs=config.pairs)
