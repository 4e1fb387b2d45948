"""DLRM: dot products of all pairs of vectors, then an MLP.

Shape legend: B rows, F fields, D embedding dim, T tasks, V vectors: F, plus one if there are dense features.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.dense_embedding import DenseEmbedding
from ziggurat.interactions.dot_product import DotProduct
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import deeper
from ziggurat.models.model import Model, ModelDims, ModelSettings


class DLRM(Model):
    """logits = top([z; ⟨x_i, x_j⟩ for i < j]), with z = bottom(dense) and x = (z, e_1, …, e_F).

    Without dense features there is no z.

    Source: Naumov et al., "Deep Learning Recommendation Model", arXiv 1906.00091, section 2. Where we deviate: the
    bottom MLP ends in a linear layer, not in a ReLU.

    Raises:
        ConfigError: there are fewer than two vectors, hence no pair.
    """

    class Config(ModelSettings):
        """The two MLPs."""

        name: Literal["dlrm"] = "dlrm"

        bottom: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers over the dense features; one linear layer to the embedding dim follows."""

        top: MLP.Config = MLP.Config()
        """Hidden layers over the dot products; one linear layer to the logits follows."""

        def deeper(self, times: int) -> DLRM.Config:
            return self.model_copy(update={"top": deeper(self.top, times)})

        def build(self, dims: ModelDims) -> DLRM:
            return DLRM(self, dims)

    def __init__(self, config: DLRM.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        vectors = dims.features + (1 if dims.dense else 0)
        if vectors < 2:
            raise ConfigError(
                f"dlrm multiplies pairs of vectors, but {dims.dense} dense and {dims.features} categorical, bag or "
                f"sequence features give only {vectors}",
                "use dcn_v2, deepfm or logistic_regression, or declare more features",
            )
        self.bottom = DenseEmbedding(dims.dense, 1, dims.dim, config.bottom) if dims.dense else None
        self.dots = DotProduct(vectors, dims.dim)
        self.top = MLP(self.dots.out_features + (dims.dim if dims.dense else 0), config.top, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        if self.bottom is None:
            return self.top(self.dots(emb_BFD))
        bottom_B1D = self.bottom(dense_BF)
        dots_BP = self.dots(torch.cat([bottom_B1D, emb_BFD], dim=1))
        return self.top(torch.cat([bottom_B1D.flatten(1), dots_BP], dim=1))
