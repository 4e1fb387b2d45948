"""AutoInt: self-attention over the fields, layer after layer; with a parallel MLP, AutoInt+.

Shape legend: B rows, F fields, D embedding dim, T tasks.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ziggurat.interactions.interacting import Interacting
from ziggurat.interactions.linear import Linear
from ziggurat.interactions.mlp import MLP
from ziggurat.models.model import Model, ModelDims, ModelSettings, field_vectors, flatten_inputs, numeric_fields


class AutoInt(Model):
    """logits = W vec(interacting layers(X)) + b, plus MLP(x) if ``deep`` is set (AutoInt+).

    Source: Song et al., "AutoInt", arXiv 1810.11921, section 4 and, for AutoInt+, section 5.5. As in the paper, a dense
    feature enters as x_f·v_f.
    """

    class Config(ModelSettings):
        """The interacting layers and the deep part."""

        depths: ClassVar[tuple[int, ...]] = (1, 2, 4)
        widening: ClassVar[float] = 2**0.5

        name: Literal["autoint"] = "autoint"

        layers: Annotated[int, Field(ge=1)] = 3
        """Number of interacting layers."""

        heads: Annotated[int, Field(ge=1)] = 2
        """Attention heads of a layer."""

        head_dim: Annotated[int, Field(ge=1)] = 32
        """Dims of a head; a layer emits heads · head_dim floats for each field."""

        scale: bool = False
        """Whether attention scores are divided by √head_dim; the paper does not divide them."""

        deep: MLP.Config | None = MLP.Config()
        """Hidden layers of the MLP; null leaves it out, which gives plain AutoInt."""

        def deeper(self, times: int) -> AutoInt.Config:
            return self.model_copy(update={"layers": times * self.layers})

        def build(self, dims: ModelDims) -> AutoInt:
            return AutoInt(self, dims)

    def __init__(self, config: AutoInt.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.numeric = numeric_fields(dims)
        self.interacting = Interacting(
            dims.dense + dims.features, dims.dim, config.layers, config.heads, config.head_dim, config.scale
        )
        self.last = Linear((dims.dense + dims.features) * config.heads * config.head_dim, dims.tasks)
        self.deep = None if config.deep is None else MLP(dims.flat, config.deep, dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        attended_BFE = self.interacting(field_vectors(self.numeric, dense_BF, emb_BFD))
        logits_BT = self.last(attended_BFE)
        return logits_BT if self.deep is None else logits_BT + self.deep(flatten_inputs(dense_BF, emb_BFD))
