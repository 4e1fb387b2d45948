"""A search space: how many cross layers a DCN has, and which widths its MLP.

Shape legend: B rows, F features, D embedding dim, N numbers of a flattened row, T tasks.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.extension import (
    Decision,
    Masks,
    MLPChoices,
    ModelDims,
    PartCost,
    Probabilities,
    SearchSpace,
    SpaceSettings,
    SuperMLP,
    SuperModule,
    output_cost,
)
from ziggurat.interactions.cross import Cross
from ziggurat.interactions.mlp import MLP
from ziggurat.models.dcn_v2 import DCNv2
from ziggurat.models.model import flatten_inputs


class CrossedSpace(SearchSpace):
    """Cross layers, each of which may be left out, stacked on which an MLP is searched."""

    class Config(SpaceSettings):
        """The layers that there may be."""

        cross_layers: Annotated[int, Field(ge=1)] = 2
        """The most cross layers."""

        deep: MLPChoices = MLPChoices(layers=2, widths=(8, 16), skips=False)
        """The MLP that reads the last cross layer."""

        def build(self, dims: ModelDims) -> CrossedSpace:
            return CrossedSpace(self, dims)

    def __init__(self, config: CrossedSpace.Config, dims: ModelDims) -> None:
        super().__init__(dims)
        self.config = config

    @property
    def decisions(self) -> tuple[Decision, ...]:
        layers = tuple(range(self.config.cross_layers + 1))
        return (Decision("cross_layers", layers), *self.config.deep.decisions("deep"))

    def super_module(self) -> SuperModule:
        return SuperCrossed(self)

    def expected_cost(self, probabilities: Probabilities, cost: PartCost) -> Tensor:
        flat, deep = self.dims.flat, self.config.deep
        costs = [
            cost.of(f"cross {flat} {layers}", lambda layers=layers: Cross(flat, 1, layers), (flat,))
            for layers in range(self.config.cross_layers + 1)
        ]
        total = (probabilities["cross_layers"] * torch.tensor(costs, dtype=torch.float64)).sum()
        total = total + deep.expected_cost("deep", flat, probabilities, cost)
        return total + output_cost(deep.out_width("deep", flat, probabilities), self.dims.tasks, cost)

    def model(self, values: dict[str, Any]) -> DCNv2.Config:
        return DCNv2.Config(cross_layers=values["cross_layers"], deep=self.config.deep.config("deep", values))


class SuperCrossed(SuperModule):
    """All cross layers and the whole MLP; the mask mixes the states after 0, 1, … cross layers."""

    def __init__(self, space: CrossedSpace) -> None:
        super().__init__()
        flat = space.dims.flat
        self.layers = nn.ModuleList(Cross(flat, 1, 1) for _ in range(space.config.cross_layers))
        self.deep = SuperMLP(space.config.deep, "deep", flat)
        self.top = MLP(self.deep.out_features, MLP.Config(hidden=()), space.dims.tasks)

    def logits(self, dense_BF: Tensor, emb_BFD: Tensor, masks: Masks) -> Tensor:
        start_BN = flatten_inputs(dense_BF, emb_BFD)
        states = [start_BN]
        for layer in self.layers:
            # A cross layer multiplies by the very first state: x0 * (W x + b) + x.
            states.append(start_BN * layer.get_submodule("layers.0")(states[-1]) + states[-1])
        crossed_BN = masks["cross_layers"].mix([lambda state=state: state for state in states])
        return self.top(self.deep(crossed_BN, masks))
