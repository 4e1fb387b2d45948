"""Checks and restores saved states of Shampoo."""

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
"""Settings that determine the shape or meaning of a state."""
_HINT = "make the optimizer with the settings that the state was saved with"
_EARLY_HINT = (
    "with graft: none, an earlier ziggurat left dimensions of a single number alone: finish this run with the one that "
    "began it, or begin a new run with its weights (training.warm_start)"
)


def check_settings(own: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Validates that a group was saved with settings that fit its states.

    Raises:
        ConfigError: a setting that shapes the states differs.
    """
    for key in _SHAPING:
        if key in saved and _shaping(saved[key]) != _shaping(own[key]):
            raise ConfigError(
                f"shampoo: the state is of other settings: {key}, {saved[key]!r} there, is {own[key]!r} here", _HINT
            )


def _shaping(value: Any) -> Any:
    """Returns the part of a setting that shapes a state: of a graft only its name, not its numbers."""
    return value.get("name", value) if isinstance(value, Mapping) else value


def check(parameter: Parameter, targets: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Validates that a saved state has the keys and shapes of ``targets``, the parameter's own state.

    Raises:
        ConfigError: it has others, or a tensor was held by another rank only.
    """
    problems = [f"{key} is missing" for key in targets.keys() - state.keys()]
    problems += [f"{key} is unknown" for key in state.keys() - targets.keys()]
    shapes = {key: tuple(torch.as_tensor(value).shape) for key, value in state.items() if key in targets}
    problems += [
        f"{key} is {shape}, not {tuple(targets[key].shape)}"
        for key, shape in shapes.items()
        if shape != tuple(targets[key].shape)
    ]
    if problems:
        single = {f"{number}/" for number, block in enumerate(parameter.blocks) if min(block.shape) == 1}
        early = bool(state) and all(
            problem.endswith(" is missing") and problem.startswith(tuple(single)) for problem in problems
        )
        raise ConfigError(
            f"shampoo: the state of parameter {parameter.name!r} is of other settings: "
            f"{'; '.join(sorted(problems)[:3])}",
            _EARLY_HINT if early else _HINT,
        )
    elsewhere = [key for key, target in targets.items() if _is_elsewhere(target, state[key])]
    if elsewhere:
        raise ConfigError(
            f"shampoo: the state of parameter {parameter.name!r} has no {elsewhere[0]}, which another rank held",
            "save and load the states of all ranks together, by ziggurat's checkpoints or torch.distributed.checkpoint",
        )


def _is_elsewhere(target: Tensor, value: Any) -> bool:
    """Returns whether this rank holds ``target`` but no part of ``value``, which should be copied into it."""
    here = target.to_local() if isinstance(target, DTensor) else target
    return isinstance(value, DTensor) and bool(here.numel()) and not value.to_local().numel()


def load(
    parameter: Parameter, targets: Mapping[str, Tensor], state: Mapping[str, Any], config: ShampooArguments
) -> None:
    """Copies a saved state, whose tensors may be DTensors or plain ones, into the parameter's own state."""
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
    for batch, place in parameter.locations.values():
        batch.resume(place, int(parameter.step), config)
