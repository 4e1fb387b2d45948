"""The parts of multi-task heads: experts, gates that mix them, and a tower for each task.

Shape legend: B rows, N numbers of the representation, E experts, H width of an expert, T tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.mlp import MLP


class Towers(Block):
    """T tensors (B, N) → (B, T): one MLP per task, each with one output."""

    def __init__(self, inputs: int, config: MLP.Config, tasks: int) -> None:
        super().__init__()
        self.out_features = tasks
        self.towers = nn.ModuleList(MLP(inputs, config, 1) for _ in range(tasks))

    def forward(self, states: list[Tensor]) -> Tensor:
        return torch.cat([tower(state_BH) for tower, state_BH in zip(self.towers, states, strict=True)], dim=1)

    def matmul_flops(self) -> int:
        return sum(tower.matmul_flops() for tower in self.towers if isinstance(tower, MLP))

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return sum(tower.elementwise_flops() for tower in self.towers if isinstance(tower, MLP))


class Experts(Block):
    """(B, N) → (B, E, H): E MLPs over the same input."""

    def __init__(self, count: int, config: MLP.Config, inputs: int) -> None:
        super().__init__()
        self.out_features = count
        experts = [MLP(inputs, config) for _ in range(count)]
        self.width = experts[0].out_features
        self.experts = nn.ModuleList(experts)

    def forward(self, inputs_BN: Tensor) -> Tensor:
        return torch.stack([expert(inputs_BN) for expert in self.experts], dim=1)

    def matmul_flops(self) -> int:
        return sum(expert.matmul_flops() for expert in self.experts if isinstance(expert, MLP))

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return sum(expert.elementwise_flops() for expert in self.experts if isinstance(expert, MLP))


class ExpertGate(Block):
    """(B, N), (B, E, H) → (B, H): Σ_e softmax(G x)_e expert_e."""

    def __init__(self, inputs: int, experts: int) -> None:
        super().__init__()
        self.out_features = experts
        self.choice = nn.Linear(inputs, experts, bias=False)

    def forward(self, inputs_BN: Tensor, experts_BEH: Tensor) -> Tensor:
        shares_BE1 = torch.softmax(self.choice(inputs_BN), dim=1).unsqueeze(2)
        return (shares_BE1 * experts_BEH).sum(1)

    def matmul_flops(self) -> int:
        return 2 * self.choice.weight.numel()

    def elementwise_flops(self) -> int:
        """Counts the products and sums for one number of an expert's output; the caller multiplies by H."""
        return 2 * self.out_features - 1
