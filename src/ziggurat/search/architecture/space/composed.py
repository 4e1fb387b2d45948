"""The built-in space: a bottom MLP, layers of interactions, and a top MLP. What is found is a DHEN.

Shape legend: B rows, F fields, D embedding dim, T tasks, N numbers of a flattened row.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.core.errors import within
from ziggurat.interactions.factorization_machine import FactorizationMachine
from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.field_blocks.convolution import Convolution
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.flat_mlp import FlatMLP
from ziggurat.interactions.field_blocks.gram_cross import GramCross
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.field_blocks.mask_block import MaskedFields
from ziggurat.interactions.field_blocks.pairs_block import PairsBlock
from ziggurat.interactions.field_blocks.self_attention import SelfAttention
from ziggurat.interactions.heads.experts import Towers
from ziggurat.interactions.heads.shared_bottom import SharedBottom
from ziggurat.interactions.mlp import MLP
from ziggurat.models.dhen import DHEN
from ziggurat.models.model import ModelDims
from ziggurat.search.architecture.space.cost import PartCost
from ziggurat.search.architecture.space.decision import Decision, Masks, Probabilities
from ziggurat.search.architecture.space.search_space import SearchSpace, SpaceSettings, SuperModule
from ziggurat.search.architecture.space.super_layer import (
    NONE,
    Candidates,
    SuperLayer,
    check_fields,
    layer_cost,
    names_of,
)
from ziggurat.search.architecture.space.super_mlp import MLPChoices, SuperMLP, output_cost

PAIRS = "pairs"
"""The decision whether products of all pairs are added to the logits."""


def every_block(fields: int) -> tuple[ComposableBlock, ...]:
    """Returns each built-in block once, all with ``fields`` outputs and small inner MLPs."""
    inner = MLP.Config(hidden=(64,))
    return (
        LinearCompression.Config(outputs=fields),
        FactorizationMachineBlock.Config(outputs=fields, rank=min(8, fields), mlp=inner),
        PairsBlock.Config(outputs=fields, mlp=inner),
        GramCross.Config(outputs=fields),
        SelfAttention.Config(outputs=fields),
        Convolution.Config(outputs=fields),
        MaskedFields.Config(outputs=fields),
        FlatMLP.Config(outputs=fields, mlp=inner),
    )


class ComposedSpace(SearchSpace):
    """Architectures bottom MLP → interaction layers → top MLP.

    - The bottom MLP over the dense features and the top MLP over the flattened last layer: the width of each hidden
      layer, whether it is left out, and whether it adds its input. One cost limit covers both, which is the split
      between them.
    - Each interaction layer: one of the blocks, with the shortcut and the norm of
      :class:`~ziggurat.interactions.field_blocks.ensemble.Ensemble`, or none.
    - Beside the layers: the products of all pairs of fields, added to the logits as in a DeepFM, or not.

    Args:
        config: the settings, listed below.
        dims: the sizes.

    Raises:
        ConfigError: a block cannot work with these sizes, or emits another number of fields than it must.
    """

    class Config(SpaceSettings):
        """The layers that there may be."""

        name: Literal["composed"] = "composed"

        bottom: MLPChoices = MLPChoices(layers=2, widths=(16, 32, 64))
        """The MLP over the dense features."""

        dense_vectors: Annotated[int, Field(ge=1)] = 1
        """Number of fields that the dense features together become."""

        layers: Annotated[int, Field(ge=0, le=16)] = 2
        """The most layers of interactions."""

        blocks: tuple[ComposableBlock, ...] | None = None
        """The blocks that each layer may be; each must emit as many fields as it gets if layers may be left out.
        Default: all built-in ones."""

        optional: bool = True
        """Whether each layer may also be left out."""

        pairs: bool = True
        """Whether the products of all pairs of fields may be added to the logits."""

        top: MLPChoices = MLPChoices()
        """The MLP over the flattened last layer; one linear layer to the logits follows."""

        def build(self, dims: ModelDims) -> ComposedSpace:
            return ComposedSpace(self, dims)

    def __init__(self, config: ComposedSpace.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.config = config
        self.features = dims.features + (config.dense_vectors if dims.dense else 0)
        self.layers: list[tuple[int, Candidates]] = []
        fields = self.features
        for number in range(1, config.layers + 1):
            blocks = every_block(fields) if config.blocks is None else config.blocks
            candidates = names_of([Ensemble.Config(blocks=(block,)) for block in blocks])
            self.layers.append((fields, candidates))
            with within("blocks"):
                where = f"layer {number}"
                fields = check_fields(candidates, fields, dims.dim, where, optional=config.optional)
        self.flat = fields * dims.dim

    @property
    def decisions(self) -> tuple[Decision, ...]:
        none = (NONE,) if self.config.optional else ()
        return (
            *(self.config.bottom.decisions("bottom") if self.dims.dense else ()),
            *(
                Decision(f"layer.{number}", (*candidates, *none))
                for number, (_, candidates) in enumerate(self.layers, start=1)
            ),
            *self.config.top.decisions("top"),
            *((Decision(PAIRS, (False, True)),) if self.config.pairs else ()),
        )

    def super_module(self) -> SuperComposed:
        return SuperComposed(self)

    def expected_cost(self, probabilities: Probabilities, cost: PartCost) -> Tensor:
        config, dims = self.config, self.dims
        total = torch.zeros((), dtype=torch.float64)
        if dims.dense:
            width = config.bottom.out_width("bottom", dims.dense, probabilities)
            total = total + config.bottom.expected_cost("bottom", dims.dense, probabilities, cost)
            total = total + output_cost(width, config.dense_vectors * dims.dim, cost)
        for number, (fields, candidates) in enumerate(self.layers, start=1):
            total = total + layer_cost(candidates, fields, dims.dim, probabilities[f"layer.{number}"], cost)
        width = config.top.out_width("top", self.flat, probabilities)
        total = total + config.top.expected_cost("top", self.flat, probabilities, cost)
        total = total + dims.tasks * output_cost(width, 1, cost)
        if config.pairs:
            fields, dim = self.features, dims.dim
            products = cost.of(f"pairs {fields} {dim}", lambda: FactorizationMachine(fields, dim), (fields, dim))
            total = total + probabilities[PAIRS][1] * products
        return total

    def model(self, values: dict[str, Any]) -> DHEN.Config:
        config = self.config
        stack = [
            candidates[values[f"layer.{number}"]]
            for number, (_, candidates) in enumerate(self.layers, start=1)
            if values[f"layer.{number}"] != NONE
        ]
        bottom = config.bottom.config("bottom", values) if self.dims.dense else MLP.Config(hidden=())
        head = SharedBottom.Config(bottom=config.top.config("top", values))
        pairs = values.get(PAIRS, False)
        return DHEN.Config(
            stack=tuple(stack), bottom=bottom, dense_vectors=config.dense_vectors, pairs=pairs, head=head
        )


class SuperComposed(SuperModule):
    """All architectures of a :class:`ComposedSpace`, in the order in which a DHEN makes its weights."""

    def __init__(self, space: ComposedSpace) -> None:
        super().__init__()
        config, dims = space.config, space.dims
        self.tasks, self.dim, self.vectors = dims.tasks, dims.dim, config.dense_vectors
        self.bottom: SuperMLP | None = None
        self.to_vectors: MLP | None = None
        if dims.dense:
            self.bottom = SuperMLP(config.bottom, "bottom", dims.dense)
            self.to_vectors = MLP(self.bottom.out_features, MLP.Config(hidden=()), self.vectors * dims.dim)
        self.layers = nn.ModuleList(
            SuperLayer(candidates, fields, dims.dim, optional=config.optional) for fields, candidates in space.layers
        )
        self.top = SuperMLP(config.top, "top", space.flat)
        self.towers = Towers(self.top.out_features, MLP.Config(hidden=()), dims.tasks)
        self.pairs = FactorizationMachine(space.features, dims.dim) if config.pairs else None

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor, masks: Masks) -> Tensor:
        if self.bottom is not None and self.to_vectors is not None:
            vectors_BVD = self.to_vectors(self.bottom(dense_BF, masks)).unflatten(1, (self.vectors, self.dim))
            emb_BFD = torch.cat([vectors_BVD, emb_BFD], dim=1)
        state_BFD = emb_BFD
        for number, layer in enumerate(self.layers, start=1):
            state_BFD = layer(state_BFD, masks[f"layer.{number}"])
        state_BN = self.top(state_BFD.flatten(1), masks)
        logits_BT = self.towers([state_BN] * self.tasks)
        pairs = self.pairs
        if pairs is None:
            return logits_BT
        return masks[PAIRS].mix([lambda: logits_BT, lambda: logits_BT + pairs(emb_BFD).sum(2)])
