"""Progressive layered extraction: layers of shared and task-specific experts.

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
    """(B, N) → (B, T): layers of shared and task-specific experts, mixed by gates; then a tower for each task.

    In a layer, task t's gate reads task t's state and mixes t's experts with the shared ones. The shared gate reads the
    shared state and mixes all experts; the last layer has no shared gate.

    Source: Tang et al., "Progressive Layered Extraction (PLE)", RecSys 2020, eq. 4 to 7. One layer is the paper's CGC.

    Args:
        config: the settings, listed below.
        inputs: N.
        tasks: T.
    """

    class Config(HeadSettings):
        """Progressive layered extraction."""

        name: Literal["ple"] = "ple"

        layers: Annotated[int, Field(ge=1)] = 1
        """Number of extraction layers."""

        shared_experts: Annotated[int, Field(ge=1)] = 4
        """Number of experts per layer that every task reads."""

        task_experts: Annotated[int, Field(ge=1)] = 4
        """Number of experts per layer that belong to one task, for each task."""

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
        """Counts the weighted sums of the experts' outputs, and the sums of hidden layers that add their input."""
        return sum(part.elementwise_flops() for part in (*self.layers, self.towers) if isinstance(part, Block))


class _Extraction(Block):
    """One layer of PLE: maps the T task states and the shared state to the next ones."""

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
        *task_states, shared_BN = states
        shared_BEH = self.shared(shared_BN)
        own = [experts(state_BN) for experts, state_BN in zip(self.own, task_states, strict=True)]
        mixed = [
            gate(state_BN, torch.cat([own_BEH, shared_BEH], dim=1))
            for gate, state_BN, own_BEH in zip(self.gates, task_states, own, strict=True)
        ]
        if self.shared_gate is not None:
            mixed.append(self.shared_gate(shared_BN, torch.cat([*own, shared_BEH], dim=1)))
        return mixed

    def matmul_flops(self) -> int:
        parts = (self.shared, *self.own, *self.gates, self.shared_gate)
        return sum(part.matmul_flops() for part in parts if isinstance(part, Block))

    def elementwise_flops(self) -> int:
        gates = (*self.gates, self.shared_gate)
        mixed = sum(gate.elementwise_flops() for gate in gates if isinstance(gate, ExpertGate)) * self.width
        experts = (self.shared, *self.own)
        return mixed + sum(each.elementwise_flops() for each in experts if isinstance(each, Block))
