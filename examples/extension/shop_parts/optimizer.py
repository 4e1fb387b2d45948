"""A dense optimizer: Lion, which steps by the sign of a mean of gradients."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat

from ziggurat.extension import DenseOptimizerSettings, ParameterGroup

Share = Annotated[float, Field(ge=0, lt=1)]


class Lion(torch.optim.Optimizer):
    """w ← w (1 − lr·decay) − lr·sign(β₁ m + (1 − β₁) g), then m ← β₂ m + (1 − β₂) g.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv 2302.06675, algorithm 2.
    """

    class Config(DenseOptimizerSettings):
        """Lion's settings; each group that `make` gets has a weight decay of its own."""

        lr: PositiveFloat = 1e-4
        """Learning rate; the schedule multiplies it."""

        betas: tuple[Share, Share] = (0.9, 0.99)
        """Share of the mean in a step, and in the next mean."""

        weight_decay: NonNegativeFloat = 0.0
        """Weights shrink by this share, times lr, a step. Not applied to biases and other vectors."""

        def make(self, groups: list[ParameterGroup]) -> Lion:
            return Lion(groups, self.lr, self.betas)

    def __init__(self, groups: list[ParameterGroup], lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            lr, (in_step, in_mean) = group["lr"], group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                direction = torch.lerp(parameter.grad, mean, in_step).sign_()
                parameter.mul_(1 - lr * group["weight_decay"]).sub_(direction, alpha=lr)
                mean.lerp_(parameter.grad, 1 - in_mean)
