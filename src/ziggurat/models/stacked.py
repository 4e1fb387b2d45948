"""The common part of DHEN and Wukong: a bottom MLP for the dense features, a stack of layers, and a head.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ziggurat.interactions.dense_embedding import DenseEmbedding
from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.stack import LayerStack
from ziggurat.interactions.mlp import MLP
from ziggurat.models.heads import HeadConfig
from ziggurat.models.model import Model, ModelDims, field_vectors


class StackedModel(Model):
    """logits = head(vec(layer_N(… layer_1(X)))), with ``pairs`` + Σ_{i<j} ⟨x_i, x_j⟩; dense features enter X as
    additional fields.

    Args:
        layers: configs of the layers, in order.
        bottom: hidden layers over the dense features; one linear layer to their vectors follows.
        dense_vectors: number of fields that the dense features together become.
        head: maps the flattened last layer to the logits.
        dims: the sizes.
        pairs: whether each logit has the products of all pairs of fields added.
    """

    def __init__(
        self,
        layers: Sequence[Ensemble.Config],
        bottom: MLP.Config,
        dense_vectors: int,
        head: HeadConfig,
        dims: ModelDims,
        *,
        pairs: bool = False,
    ) -> None:
        super().__init__(dims)
        self.bottom = DenseEmbedding(dims.dense, dense_vectors, dims.dim, bottom) if dims.dense else None
        fields = dims.features + (dense_vectors if dims.dense else 0)
        self.stack = LayerStack(layers, fields, dims.dim)
        self.head = head.build_checked(self.stack.out_features * dims.dim, dims.tasks)
        self.pairs = FactorizationMachine(fields, dims.dim) if pairs else None

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        fields_BFD = field_vectors(self.bottom, dense_BF, emb_BFD)
        logits_BT = self.head(self.stack(fields_BFD).flatten(1))
        return logits_BT if self.pairs is None else logits_BT + self.pairs(fields_BFD).sum(2)
