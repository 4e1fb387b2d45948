"""Wide & Deep: a linear model and an MLP, trained together.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import deeper
from ziggurat.models.model import Model, ModelDims, ModelSettings, flatten_inputs, read_by_products


class WideDeep(Model):
    """logits = W x + b + MLP(x), with x the flattened dense features and embeddings.

    Source: Cheng et al., "Wide & Deep Learning for Recommender Systems", arXiv 1606.07792, section 3. Where we deviate:
    the wide part reads an id's weight linearly from its embedding instead of having a scalar per id, and it has no
    crossed columns (declare a crossed column as a feature if you want one).
    """

    class Config(ModelSettings):
        """The deep part."""

        name: Literal["wide_deep"] = "wide_deep"

        deep: MLP.Config = MLP.Config()
        """Hidden layers of the MLP; one linear layer to the logits follows."""

        def deeper(self, times: int) -> WideDeep.Config:
            return self.model_copy(update={"deep": deeper(self.deep, times)})

        def build(self, dims: ModelDims) -> WideDeep:
            return WideDeep(self, dims)

    def __init__(self, config: WideDeep.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.wide = Linear(dims.flat, dims.tasks)
        self.deep = MLP(dims.flat, config.deep, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        flat_BN = read_by_products(flatten_inputs(dense_BF, emb_BFD))
        return self.wide(flat_BN) + self.deep(flat_BN)
