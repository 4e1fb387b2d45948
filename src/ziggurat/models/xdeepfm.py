"""xDeepFM: a linear model, a compressed interaction network and an MLP.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ziggurat.interactions.compressed_interaction import CompressedInteraction
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import repeated
from ziggurat.models.model import (
    Model,
    ModelDims,
    ModelSettings,
    field_vectors,
    flatten_inputs,
    numeric_fields,
    read_by_products,
)


class XDeepFM(Model):
    """logits = W x + b + V p⁺(X) + MLP(x), with p⁺ the compressed interaction network's maps, summed over D.

    Source: Lian et al., "xDeepFM", arXiv 1803.05170, eq. 9. Where we deviate: the first-order weight of an id is read
    linearly from its embedding; a dense feature enters the network as x_f·v_f.
    """

    class Config(ModelSettings):
        """The compressed interaction network and the deep part."""

        name: Literal["xdeepfm"] = "xdeepfm"

        cin_layers: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (32, 32)
        """Number of feature maps of each layer of the compressed interaction network."""

        deep: MLP.Config = MLP.Config()
        """Hidden layers of the MLP; one linear layer to the logits follows."""

        def deeper(self, times: int) -> XDeepFM.Config:
            return self.model_copy(update={"cin_layers": repeated(self.cin_layers, times)})

        def build(self, dims: ModelDims) -> XDeepFM:
            return XDeepFM(self, dims)

    def __init__(self, config: XDeepFM.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.numeric = numeric_fields(dims)
        self.first_order = Linear(dims.flat, dims.tasks)
        self.interaction = CompressedInteraction(dims.dense + dims.features, dims.dim, config.cin_layers)
        self.maps = Linear(self.interaction.out_features, dims.tasks, bias=False)
        self.deep = MLP(dims.flat, config.deep, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        flat_BN = read_by_products(flatten_inputs(dense_BF, emb_BFD))
        maps_BN = self.interaction(field_vectors(self.numeric, dense_BF, emb_BFD)).sum(2)
        return self.first_order(flat_BN) + self.maps(maps_BN) + self.deep(flat_BN)
