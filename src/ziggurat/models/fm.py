"""FM: a factorization machine of second order.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.linear import Linear
from ziggurat.models.model import Model, ModelDims, ModelSettings, field_vectors, flatten_inputs, numeric_fields


class FM(Model):
    """logit = ⟨w, x⟩ + b + Σ_{i<j} ⟨v_i, v_j⟩, as in :class:`~ziggurat.models.deepfm.DeepFM`, without its MLP.

    Source: Rendle, "Factorization Machines", ICDM 2010, eq. 1. It deviates from the paper as our DeepFM does.
    """

    class Config(ModelSettings):
        """A factorization machine has no settings."""

        name: Literal["fm"] = "fm"

        def build(self, dims: ModelDims) -> FM:
            return FM(self, dims)

    def __init__(self, config: FM.Config, dims: ModelDims) -> None:
        del config
        super().__init__(dims)
        self.numeric = numeric_fields(dims)
        self.first_order = Linear(dims.flat, dims.tasks)
        self.second_order = FactorizationMachine(dims.dense + dims.features, dims.dim)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        pairs_B1 = self.second_order(field_vectors(self.numeric, dense_BF, emb_BFD)).sum(2)
        return self.first_order(flatten_inputs(dense_BF, emb_BFD)) + pairs_B1
