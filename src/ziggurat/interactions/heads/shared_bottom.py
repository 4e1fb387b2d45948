"""The simplest multi-task head: one MLP shared by all tasks, and a tower for each.

Shape legend: B rows, N numbers of the representation, E experts, H width of an expert, T tasks.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ziggurat.interactions.block import Block
from ziggurat.interactions.heads.experts import Towers
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.mlp import MLP


class SharedBottom(Block):
    """(B, N) → (B, T): one MLP shared by all tasks, then a tower for each.

    With one task and no hidden layers in its tower, it is a plain MLP.

    Source: Caruana, "Multitask Learning", Machine Learning 28, 1997.

    Args:
        config: the settings, listed below.
        inputs: N.
        tasks: T.
    """

    class Config(HeadSettings):
        """One MLP shared by all tasks, a tower for each."""

        name: Literal["shared_bottom"] = "shared_bottom"

        bottom: MLP.Config = MLP.Config()
        """Hidden layers that all tasks share."""

        tower: MLP.Config = MLP.Config(hidden=())
        """Hidden layers of each task; a linear layer to its logit follows."""

        def build(self, inputs: int, tasks: int) -> SharedBottom:
            return SharedBottom(self, inputs, tasks)

    def __init__(self, config: SharedBottom.Config, inputs: int, tasks: int) -> None:
        super().__init__()
        self.out_features = tasks
        self.bottom = MLP(inputs, config.bottom)
        self.towers = Towers(self.bottom.out_features, config.tower, tasks)

    def forward(self, inputs_BN: Tensor) -> Tensor:
        shared_BH = self.bottom(inputs_BN)
        return self.towers([shared_BH] * self.out_features)

    def matmul_flops(self) -> int:
        return self.bottom.matmul_flops() + self.towers.matmul_flops()

    def elementwise_flops(self) -> int:
        """Counts the sums of hidden layers that add their input."""
        return self.bottom.elementwise_flops() + self.towers.elementwise_flops()
