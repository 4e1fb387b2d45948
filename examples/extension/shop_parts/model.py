"""A model: every pair of fields, weighted by how much the pair matters.

Shape legend: B rows, F fields, P pairs of fields, D embedding dim, N numbers of a row laid flat, T tasks.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.extension import Model, ModelDims, ModelSettings


class WeightedPairs(Model):
    """logit_t = MLP_t(x) + Σ_{i<j} r_ijt ⟨v_i, v_j⟩, with x the dense features and the embeddings laid flat.

    Source: Pan et al., "Field-weighted Factorization Machines", WWW 2018, eq. 4, with an MLP in place of the linear
    term.
    """

    class Config(ModelSettings):
        """One hidden layer, and a weight for each pair of fields."""

        hidden: Annotated[int, Field(ge=1)] = 64
        """Units of the hidden layer."""

        def build(self, dims: ModelDims) -> WeightedPairs:
            return WeightedPairs(self, dims)

    def __init__(self, config: WeightedPairs.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.deep = nn.Sequential(nn.Linear(dims.flat, config.hidden), nn.ReLU(), nn.Linear(config.hidden, dims.tasks))
        self.register_buffer("pairs_2P", torch.triu_indices(dims.features, dims.features, 1), persistent=False)
        pairs = dims.features * (dims.features - 1) // 2
        self.weights_TP = nn.Parameter(torch.ones(dims.tasks, pairs) / max(1, pairs))

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        flat_BN = torch.cat([dense_BF, emb_BFD.flatten(1)], dim=1)
        left_P, right_P = self.get_buffer("pairs_2P")
        products_BP = (emb_BFD @ emb_BFD.transpose(1, 2))[:, left_P, right_P]
        return self.deep(flat_BN) + products_BP @ self.weights_TP.T

    def flops(self) -> int:
        """FLOPs of one row, forward: what the scaling sweep counts. Only needed where layers are no ziggurat blocks."""
        linear = [layer for layer in self.deep if isinstance(layer, nn.Linear)]
        fields, pairs = self.dims.features, self.weights_TP.numel()
        return sum(2 * layer.weight.numel() for layer in linear) + 2 * fields**2 * self.dims.dim + 2 * pairs
