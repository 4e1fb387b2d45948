"""The cases of the dense optimizers' contract tests (add one for a new optimizer), and helpers for small trainings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ziggurat.core.parts import built_in
from ziggurat.optim.dense import DenseOptimizerConfig
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.torch_optimizers import SGD, Adagrad, Adam, AdamW


@dataclass(frozen=True)
class DenseCase:
    """One setting of one optimizer.

    Attributes:
        name: the test's id.
        config: the settings, without weight decay.
        torch: makes torch's own unfused optimizer with the same settings; None if torch has none.
    """

    name: str
    config: DenseOptimizerConfig
    torch: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None


CASES = [
    DenseCase("adam", Adam(lr=0.02), lambda p: torch.optim.Adam(p, lr=0.02)),
    DenseCase(
        "adam-betas",
        Adam(lr=0.02, betas=(0.8, 0.9), eps=1e-4),
        lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.8, 0.9), eps=1e-4),
    ),
    DenseCase("adamw", AdamW(lr=0.02), lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.0)),
    DenseCase("sgd", SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    DenseCase("sgd-momentum", SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    DenseCase("adagrad", Adagrad(lr=0.1, eps=1e-6), lambda p: torch.optim.Adagrad(p, lr=0.1, eps=1e-6)),
    DenseCase("shampoo-graft", ShampooConfig(lr=0.02, start=10**6), lambda p: torch.optim.Adam(p, lr=0.02)),
    DenseCase("shampoo", ShampooConfig(lr=0.02, precondition_frequency=3, late=1), None),
    DenseCase("shampoo-eigenbasis", ShampooConfig(lr=0.02, precondition_frequency=3, form="eigenbasis"), None),
]

_ABSENT = [
    kind
    for kind in built_in(DenseOptimizerConfig, DenseOptimizerSettings)
    if kind not in {type(c.config) for c in CASES}
]
CASES += [DenseCase(kind().title, kind(), None) for kind in _ABSENT]  # a new optimizer is under contract at once


def small_model() -> nn.Module:
    """Returns a model with matrices, biases and a norm's scale; always the same weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    """Trains steps ``first`` to ``last`` − 1 on batches that depend only on the step; returns the loss before each."""
    losses: list[float] = []
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        inputs_BF = torch.randn(16, 5, generator=generator)
        targets_B: Tensor = (inputs_BF[:, 0] * inputs_BF[:, 1] > 0).float()
        loss = F.binary_cross_entropy_with_logits(model(inputs_BF)[:, 0], targets_B)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return losses


def gradients(shape: tuple[int, ...], steps: int) -> list[Tensor]:
    """Returns a gradient for each step, in fp64; always the same ones."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def parameter(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> nn.Parameter:
    """Returns a parameter with random weights; always the same ones."""
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype))


def weights_after(weights: nn.Parameter, optimizer: torch.optim.Optimizer, steps: list[Tensor]) -> Tensor:
    """Takes a step with each of the gradients and returns the weights."""
    for gradient in steps:
        weights.grad = gradient.to(weights.dtype)
        optimizer.step()
    return weights.detach()
