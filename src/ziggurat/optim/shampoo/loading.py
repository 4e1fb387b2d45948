"""Saved states of Shampoo: whether one fits, and taking it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.arguments import ShampooArguments
from ziggurat.optim.shampoo.parameter import Parameter

_SHAPING = ("graft", "form", "vectors", "exponents", "max_preconditioner_dim")
"""Settings that a state is of."""
_HINT = "make the optimizer with the settings that the state was saved with"


def check_settings(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raises a ConfigError where a group was saved with settings that its states are not of."""
    for key in _SHAPING:
        if key in saved and _shaping(saved[key]) != _shaping(own[key]):
            raise ConfigError(
                f"shampoo: the state is of other settings: {key}, {saved[key]!r} there, is {own[key]!r} here", _HINT
            )


def _shaping(value: Any) -> Any:
    """What of a setting a state is of: a graft's numbers are not."""
    return value.get("name", value) if isinstance(value, Mapping) else value


def check(parameter: Parameter, targets: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Raises a ConfigError where a state is not like ``targets``, the parameter's own."""
    problems = [f"{key} is missing" for key in targets.keys() - state.keys()]
    problems += [f"{key} is unknown" for key in state.keys() - targets.keys()]
    shapes = {key: tuple(torch.as_tensor(value).shape) for key, value in state.items() if key in targets}
    problems += [
        f"{key} is {shape}, not {tuple(targets[key].shape)}"
        for key, shape in shapes.items()
        if shape != tuple(targets[key].shape)
    ]
    if problems:
        raise ConfigError(
            f"shampoo: the state of parameter {parameter.name!r} is of other settings: "
            f"{'; '.join(sorted(problems)[:3])}",
            _HINT,
        )
    elsewhere = [key for key, target in targets.items() if _is_elsewhere(target, state[key])]
    if elsewhere:
        raise ConfigError(
            f"shampoo: the state of parameter {parameter.name!r} has no {elsewhere[0]}, which another rank held",
            "save and load states of ranks by ziggurat's checkpoints or torch.distributed.checkpoint, all of them "
            "together",
        )


def _is_elsewhere(target: Tensor, value: Any) -> bool:
    """Whether ``target`` is here and of ``value``, which is to be copied into it, there is nothing."""
    here = target.to_local() if isinstance(target, DTensor) else target
    return isinstance(value, DTensor) and bool(here.numel()) and not value.to_local().numel()


def load(
    parameter: Parameter, targets: Mapping[str, Tensor], state: Mapping[str, Any], config: ShampooArguments
) -> None:
    """Copy a state, of which tensors may be whole ones, into the parameter's own."""
    if not parameter.blocks:
        return
    parameter.step.copy_(torch.as_tensor(state["step"]))
    for key, target in targets.items():
        value = state[key]
        if isinstance(target, DTensor):
            if not target.to_local().numel():
                continue
            target = target.to_local()
        value = value.to_local() if isinstance(value, DTensor) else torch.as_tensor(value)
        if target is not value:
            target.copy_(value)
    for stack, place in parameter.places.values():
        stack.resumed(place, int(parameter.step), config)
