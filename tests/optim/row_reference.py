"""A reference for row optimizers on a dense table in float64: sums a row's gradients, then updates the row once."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ziggurat.optim.rows import RowAdagrad, RowOptimizerConfig, RowSGD, RowwiseAdagrad


@dataclass
class ReferenceTable:
    """One table (R, D) with its optimizer's state.

    Attributes:
        weight_RD: float64 weights.
        config: the optimizer's settings, without weight decay.
        mean: whether bags are pooled by mean, else by sum.
        lr_multiplier: the schedule's multiplier.
        state_RD: sums of squared gradients; under row-wise Adagrad all entries of a row are equal.
    """

    weight_RD: Tensor
    config: RowOptimizerConfig
    mean: bool
    lr_multiplier: float = 1.0
    state_RD: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.state_RD = torch.zeros_like(self.weight_RD)

    def pooled(self, bags: list[list[int]]) -> Tensor:
        """Returns the pooled vectors (B, D); those of empty bags are zero."""
        rows = [self.weight_RD[bag].sum(0) / (max(len(bag), 1) if self.mean else 1) for bag in bags]
        return torch.stack(rows)

    def update(self, bags: list[list[int]], grad_BD: Tensor) -> None:
        """Takes a step, given the gradient of the loss with respect to the pooled vectors."""
        summed_RD = torch.zeros_like(self.weight_RD)
        touched: set[int] = set()
        for bag, grad_D in zip(bags, grad_BD, strict=True):
            for row in bag:
                summed_RD[row] += grad_D / len(bag) if self.mean else grad_D
                touched.add(row)
        lr = self.config.lr * self.lr_multiplier
        for row in touched:
            grad_D = summed_RD[row]
            match self.config:
                case RowSGD():
                    self.weight_RD[row] -= lr * grad_D
                case RowwiseAdagrad():
                    self.state_RD[row] += grad_D.square().mean()
                    self.weight_RD[row] -= lr * grad_D / (self.state_RD[row].sqrt() + self.config.eps)
                case RowAdagrad():
                    self.state_RD[row] += grad_D.square()
                    self.weight_RD[row] -= lr * grad_D / (self.state_RD[row].sqrt() + self.config.eps)
                case _:
                    raise AssertionError(self.config)
