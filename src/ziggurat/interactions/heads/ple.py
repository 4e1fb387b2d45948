"""Progressive layered extraction: shared experts and experts of each task, kept apart on purpose.

Shape legend: B rows, N numbers of the representation, E experts, H width of an expert, T tasks.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.heads.experts import ExpertGate, Experts, Towers
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.mlp import MLP


class PLE(Block):
    """(B, N) → (B, T): layers of shared experts and experts of each task, mixed by gates; then a tower for each task.

    In a layer, task t's gate reads t's own state and mixes t's experts with the shared ones; the shared gate, which the
    last layer lacks, reads the shared state and mixes all.

    Source: Tang et al., "Progressive Layered Extraction (PLE)", RecSys 2020, eq. 4 to 7. One layer is its CGC.

    Args:
        config: as below.
        inputs: N.
        tasks: T.
    """

    class Config(HeadSettings):
        """Progressive layered extraction."""

        name: Literal["ple"] = "ple"

        layers: Annotated[int, Field(ge=1)] = 1
        """Extraction layers."""

        shared_experts: Annotated[int, Field(ge=1)] = 4
        """Experts that every task reads, per layer."""

        task_experts: Annotated[int, Field(ge=1)] = 4
        """Experts of each task, per layer."""

        expert: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers of an expert."""

        tower: MLP.Config = MLP.Config(hidden=(32,))
        """Hidden layers of each task; a linear layer to its logit follows."""

        def build(self, inputs: int, tasks: int) -> PLE:
            return PLE(self, inputs, tasks)

    def __init__(self, config: PLE.Config, inputs: int, tasks: int) -> None:
        super().__init__()
        self.out_features = tasks
        layers: list[_Extraction] = []
        for number in range(config.layers):
            layers.append(_Extraction(config, inputs, tasks, last=number == config.layers - 1))
            inputs = layers[-1].width
        self.layers = nn.ModuleList(layers)
        self.towers = Towers(inputs, config.tower, tasks)

    def forward(self, inputs_BN: Tensor) -> Tensor:
        states = [inputs_BN] * (self.out_features + 1)
        for layer in self.layers:
            states = layer(states)
        return self.towers(states[: self.out_features])

    def matmul_flops(self) -> int:
        return sum(part.matmul_flops() for part in (*self.layers, self.towers) if isinstance(part, Block))

    def elementwise_flops(self) -> int:
        """Weighing and adding the experts' outputs."""
        return sum(layer.elementwise_flops() for layer in self.layers if isinstance(layer, Block))


class _Extraction(Block):
    """One layer of PLE: the states of the T tasks and the shared one, to the next."""

    def __init__(self, config: PLE.Config, inputs: int, tasks: int, last: bool) -> None:
        super().__init__()
        self.out_features = tasks
        self.shared = Experts(config.shared_experts, config.expert, inputs)
        self.own = nn.ModuleList(Experts(config.task_experts, config.expert, inputs) for _ in range(tasks))
        self.width = self.shared.width
        read = config.shared_experts + config.task_experts
        self.gates = nn.ModuleList(ExpertGate(inputs, read) for _ in range(tasks))
        self.shared_gate = None if last else ExpertGate(inputs, config.shared_experts + tasks * config.task_experts)

    def forward(self, states: list[Tensor]) -> list[Tensor]:
        *of_tasks, shared_BN = states
        shared_BEH = self.shared(shared_BN)
        own = [experts(state_BN) for experts, state_BN in zip(self.own, of_tasks, strict=True)]
        mixed = [
            gate(state_BN, torch.cat([own_BEH, shared_BEH], dim=1))
            for gate, state_BN, own_BEH in zip(self.gates, of_tasks, own, strict=True)
        ]
        if self.shared_gate is not None:
            mixed.append(self.shared_gate(shared_BN, torch.cat([*own, shared_BEH], dim=1)))
        return mixed

    def matmul_flops(self) -> int:
        parts = (self.shared, *self.own, *self.gates, self.shared_gate)
        return sum(part.matmul_flops() for part in parts if isinstance(part, Block))

    def elementwise_flops(self) -> int:
        gates = (*self.gates, self.shared_gate)
        return sum(gate.elementwise_flops() for gate in gates if isinstance(gate, ExpertGate)) * self.width
