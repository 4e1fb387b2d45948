"""Checks a dense optimizer from outside the package by one step on two small parameters."""

from __future__ import annotations

import torch
from torch import nn

from ziggurat.core.errors import ConfigError
from ziggurat.core.outside.failures import called
from ziggurat.optim.dense_optimizer import DenseOptimizerSettings


def check_dense_optimizer(config: DenseOptimizerSettings) -> None:
    """Checks, if an optimizer is from outside the package, that it can be made and takes a step.

    Args:
        config: the optimizer's config.

    Raises:
        ConfigError: ``make`` fails or returns something else, or the step fails or leaves numbers that are not finite;
            the message names the optimizer.
    """
    if config.reference is None:
        return
    parameters = small_parameters()
    optimizer = config.build(parameters)
    take_step(config.title, optimizer, parameters, 0)


def small_parameters() -> dict[str, nn.Parameter]:
    """Returns a matrix and a vector, the same at each call."""
    generator = torch.Generator().manual_seed(1)
    return {
        "weight": nn.Parameter(torch.randn(4, 3, generator=generator)),
        "bias": nn.Parameter(torch.randn(4, generator=generator)),
    }


def take_step(title: str, optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], number: int) -> None:
    """Takes a step with gradients that depend on its number alone.

    Raises:
        ConfigError: it fails, or parameters are not finite afterwards.
    """
    generator = torch.Generator().manual_seed(number)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    called(title, "step", lambda: optimizer.step(), defined=type(optimizer).step)
    for name, parameter in parameters.items():
        if not bool(torch.isfinite(parameter).all()):
            raise ConfigError(
                f"{title}: step {number + 1} made {name}, of shape {tuple(parameter.shape)}, infinite or nan",
                "look for divisions by a state that is still zero",
            )
    optimizer.zero_grad(set_to_none=True)
