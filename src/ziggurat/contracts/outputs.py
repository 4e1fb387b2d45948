"""Calls modules from outside the package with a few rows, and checks what ``forward`` returns.

Shape legend: B rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.core.outside.failures import called
from ziggurat.interactions.block import MASK, Origin
from ziggurat.models.model import Model


def rows_for(*sizes: int) -> int:
    """Returns a number of rows that no other size equals, so that exchanged axes are noticed."""
    return next(rows for rows in (2, 3, 5, 7, 11, 13, 17) if rows not in sizes or rows == 17)


def watch(module: nn.Module) -> None:
    """Makes every module from outside the package that ``module`` consists of check what its ``forward`` returns.

    The module is for checks alone: it is not given to training.
    """
    for part in module.modules():
        origin = getattr(part, "origin", None)
        if not isinstance(origin, Origin):
            continue
        method = "logits" if isinstance(part, Model) and type(part).forward is Model.forward else "forward"
        setattr(part, method, _watched(part, method, origin))


def example_inputs(origin: Origin, rows: int, device: str) -> list[Tensor]:
    """Returns inputs of ``forward`` that require gradients: small numbers, those of dense features from 0 to 1.

    They are the same at each call.
    """
    generator = torch.Generator().manual_seed(1)
    found: list[Tensor] = []
    for name, shape in origin.inputs.items():
        if name.startswith(MASK):
            found.append(torch.ones(rows, *shape, dtype=torch.bool, device=device))
            continue
        numbers = torch.rand(rows, *shape, generator=generator)
        numbers = numbers if name.startswith("dense") else 0.2 * (numbers - 0.5)
        found.append(numbers.to(device).requires_grad_())
    return found


def check_shape(title: str, origin: Origin, output: Any, rows: int, hint: str) -> None:
    """Refuses what a module returned if it is no tensor of the right shape.

    Args:
        title: the module and its method.
        origin: the module's shapes.
        output: what the method returned.
        rows: how many rows it was given.
        hint: said if the shape is wrong.

    Raises:
        ConfigError: it is not.
    """
    expected = (rows, *origin.output)
    wanted = f"expected {origin.axes} = {expected}"
    if not isinstance(output, Tensor):
        received = "None" if output is None else f"a {type(output).__qualname__}"
        raise ConfigError(f"{title} returned {received}, {wanted}", "return one tensor")
    if tuple(output.shape) != expected:
        raise ConfigError(f"{title} returned {_shape(output)}, {wanted}", hint)


def _watched(part: nn.Module, method: str, origin: Origin) -> Callable[..., Any]:
    call, defined = getattr(part, method), getattr(type(part), method)

    def checked(*inputs: Any) -> Any:
        given = zip(origin.inputs, inputs, strict=False)
        hint = f"it was called with {', '.join(f'{name} {_shape(each)}' for name, each in given)}"
        output = called(origin.title, method, lambda: call(*inputs), defined=defined, hint=hint)
        dtype = None if isinstance(part, Model) else inputs[0].dtype
        _check_output(f"{origin.title}: {method}", origin, output, inputs[0], dtype, hint)
        return output

    return checked


def _check_output(title: str, origin: Origin, output: Any, first: Tensor, dtype: torch.dtype | None, hint: str) -> None:
    """Refuses what a module returned for a few rows.

    Args:
        title: the module and its method.
        origin: the module's shapes.
        output: what the method returned.
        first: the first input, whose rows the output must have.
        dtype: the dtype that the output must have; None for any of real numbers.
        hint: said if the shape is wrong.

    Raises:
        ConfigError: it is no tensor of the right shape and dtype, it has no gradient, or it is not finite.
    """
    check_shape(title, origin, output, first.shape[0], hint)
    if not output.is_floating_point() or dtype not in (None, output.dtype):
        raise ConfigError(
            f"{title} returned {output.dtype}, expected {dtype or torch.float32}", "convert what is returned"
        )
    if torch.is_grad_enabled() and first.requires_grad and not output.requires_grad:
        raise ConfigError(
            f"{title} returned numbers without a gradient, so nothing would learn",
            "leave out detach(), torch.no_grad() and conversions to numpy",
        )
    if output.device.type != "meta" and not bool(torch.isfinite(output).all()):
        raise ConfigError(
            f"{title} returned infinity or nan for finite inputs",
            "look for divisions by zero, logarithms and overflow; embeddings were between -.1 and .1, dense features "
            "between 0 and 1",
        )


def _shape(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__qualname__
