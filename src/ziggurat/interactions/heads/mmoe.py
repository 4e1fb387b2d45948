"""Multi-gate mixture of experts: every task mixes the same experts with a gate of its own.

Shape legend: B rows, N numbers of the representation, E experts, H width of an expert, T tasks.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from ziggurat.interactions.block import Block
from ziggurat.interactions.heads.experts import ExpertGate, Experts, Towers
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.mlp import MLP


class MMoE(Block):
    """(B, N) → (B, T): every task mixes the same experts with a gate of its own and feeds the result to its tower.

    f_t(x) = tower_t(Σ_e softmax(G_t x)_e expert_e(x))

    Source: Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts", KDD
    2018, eq. 6 and 7.

    Args:
        config: the settings, listed below.
        inputs: N.
        tasks: T.
    """

    class Config(HeadSettings):
        """Experts shared by all tasks, a gate and a tower for each task."""

        name: Literal["mmoe"] = "mmoe"

        experts: Annotated[int, Field(ge=1)] = 8
        """Number of experts."""

        expert: MLP.Config = MLP.Config(hidden=(64,))
        """Hidden layers of an expert."""

        tower: MLP.Config = MLP.Config(hidden=(32,))
        """Hidden layers of each task; a linear layer to its logit follows."""

        def build(self, inputs: int, tasks: int) -> MMoE:
            return MMoE(self, inputs, tasks)

    def __init__(self, config: MMoE.Config, inputs: int, tasks: int) -> None:
        super().__init__()
        self.out_features = tasks
        self.experts = Experts(config.experts, config.expert, inputs)
        self.gates = nn.ModuleList(ExpertGate(inputs, config.experts) for _ in range(tasks))
        self.towers = Towers(self.experts.width, config.tower, tasks)

    def forward(self, inputs_BN: Tensor) -> Tensor:
        experts_BEH = self.experts(inputs_BN)
        return self.towers([gate(inputs_BN, experts_BEH) for gate in self.gates])

    def matmul_flops(self) -> int:
        parts = (self.experts, *self.gates, self.towers)
        return sum(part.matmul_flops() for part in parts if isinstance(part, Block))

    def elementwise_flops(self) -> int:
        """Counts the weighted sums of the experts' outputs, and the sums of hidden layers that add their input."""
        gates = sum(gate.elementwise_flops() for gate in self.gates if isinstance(gate, ExpertGate))
        return gates * self.experts.width + self.experts.elementwise_flops() + self.towers.elementwise_flops()
