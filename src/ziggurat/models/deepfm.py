"""DeepFM: a factorization machine and an MLP over the same embeddings.

Shape legend: B rows, F fields, D embedding dim, T tasks, N numbers of a flattened row.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.models.growth import deeper
from ziggurat.models.model import (
    Model,
    ModelDims,
    ModelSettings,
    field_vectors,
    flatten_inputs,
    numeric_fields,
    read_by_products,
)


class DeepFM(Model):
    """logit = ⟨w, x⟩ + b + Σ_{i<j} ⟨v_i, v_j⟩ + MLP(x), with x the flattened dense features and embeddings.

    Source: Guo et al., "DeepFM", arXiv 1703.04247, eq. 1 to 4. Where we deviate:

    - the first-order weight of an id is read linearly from its embedding, ⟨w_f, e_i⟩, instead of from a second,
      one-float table: this halves the lookups and gives the same functions, except that the weights are shared;
    - a dense feature enters the factorization machine as x_f·v_f (Rendle's real-valued feature), and the first-order
      term and the MLP as the plain number;
    - with several tasks all share the factorization machine's term; each has its own first-order term and MLP output.
    """

    class Config(ModelSettings):
        """The deep part; the other parts have no settings."""

        name: Literal["deepfm"] = "deepfm"

        deep: MLP.Config = MLP.Config()
        """Hidden layers of the MLP; one linear layer to the logits follows."""

        def deeper(self, times: int) -> DeepFM.Config:
            return self.model_copy(update={"deep": deeper(self.deep, times)})

        def build(self, dims: ModelDims) -> DeepFM:
            return DeepFM(self, dims)

    def __init__(self, config: DeepFM.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.numeric = numeric_fields(dims)
        self.first_order = Linear(dims.flat, dims.tasks)
        self.second_order = FactorizationMachine(dims.dense + dims.features, dims.dim)
        self.deep = MLP(dims.flat, config.deep, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        flat_BN = read_by_products(flatten_inputs(dense_BF, emb_BFD))
        pairs_B1 = self.second_order(field_vectors(self.numeric, dense_BF, emb_BFD)).sum(2)
        return self.first_order(flat_BN) + pairs_B1 + self.deep(flat_BN)
