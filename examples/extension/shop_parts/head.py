"""A head: a tower of its own for each task.

Shape legend: B rows, N numbers of a row's representation, T tasks.
"""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from ziggurat.extension import Block, HeadSettings


class Towers(Block):
    """(B, N) → (B, T): logit_t = w_t · relu(W_t x + b_t) + c_t.

    It does not state its FLOPs: torch counts them.
    """

    class Config(HeadSettings):
        """A hidden layer for each task."""

        hidden: Annotated[int, Field(ge=1)] = 16
        """Units of a task's hidden layer."""

        def build(self, inputs: int, tasks: int) -> Towers:
            return Towers(self, inputs, tasks)

    def __init__(self, config: Towers.Config, inputs: int, tasks: int) -> None:
        super().__init__()
        self.out_features = tasks
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1))
            for _ in range(tasks)
        )

    def forward(self, row_BN: Tensor) -> Tensor:
        return torch.cat([tower(row_BN) for tower in self.towers], dim=1)
