"""A small network that Shampoo trains on several ranks, for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

SETTINGS: dict[str, Any] = {
    "lr": 0.02, "precondition_frequency": 3, "max_preconditioner_dim": 17, "weight_decay": 0.01, "momentum": 0.5,
}  # fmt: skip


def network(width: int = 33) -> nn.Module:
    """Returns a network of odd sizes, so that blocks start at arbitrary positions."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(19, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))


def gradients(model: nn.Module, step: int) -> None:
    """Computes gradients of a batch that depends only on the step, so that they are the same on every rank."""
    generator = torch.Generator().manual_seed(step)
    inputs_BF = torch.randn(32, 19, generator=generator)
    model(inputs_BF).sub(inputs_BF[:, :1] * inputs_BF[:, 1:2]).square().mean().backward()


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        optimizer.zero_grad()
        gradients(model, step)
        optimizer.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [
        each.full_tensor() if isinstance(each, torch.distributed.tensor.DTensor) else each.detach().clone()
        for each in model.parameters()
    ]
