"""The contract of dense optimizers: they train everything that is not an embedding table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ziggurat.core.errors import ConfigError
from ziggurat.core.parts import PartConfig

ParameterGroup = dict[str, Any]
"""A group as torch's optimizers take it: ``params``, a list of (name, parameter), and the group's own settings."""


class DenseOptimizerSettings(PartConfig):
    """The base config of dense optimizers.

    A subclass names its settings as the arguments of its optimizer; ``weight_decay`` is set by group.
    """

    @abstractmethod
    def make(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        """Returns the optimizer of these parameter groups; all ranks call it."""

    def settings(self) -> dict[str, Any]:
        """Returns the settings that are the same for all groups."""
        return self.model_dump(exclude={"name", "weight_decay"})

    def build(self, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
        """Returns the optimizer, with two groups, matrices first.

        Weight decay applies to parameters of two or more dimensions. Biases, the scales of norms and other vectors (one
        dimension or none) do not decay, because shrinking them does not reduce overfitting. A group that would be empty
        is left out. Groups carry their parameters' names.

        Args:
            parameters: name -> parameter; their order is that of the optimizer's state.

        Raises:
            ConfigError: there is nothing to optimize; or, for an optimizer from outside the package, ``make`` fails,
                returns something else, or an optimizer of other parameters or without learning rates.
        """
        trainable = [(name, parameter) for name, parameter in parameters.items() if parameter.requires_grad]
        if not trainable:
            raise ConfigError(f"optimizer {self.title!r}: the model has no trainable parameters")
        matrices = [item for item in trainable if item[1].ndim >= 2]
        vectors = [item for item in trainable if item[1].ndim < 2]
        groups: list[ParameterGroup] = []
        if matrices:
            groups.append({"params": matrices, "weight_decay": getattr(self, "weight_decay", 0.0)})
        if vectors:
            groups.append({"params": vectors, "weight_decay": 0.0})
        optimizer = self.checked_part(lambda: self.make(groups), torch.optim.Optimizer, "make")
        if self.reference is not None:
            _check_groups(self.title, optimizer, dict(trainable))
        return optimizer


def _check_groups(title: str, optimizer: torch.optim.Optimizer, given: Mapping[str, nn.Parameter]) -> None:
    """Refuses an optimizer from outside the package that training cannot use for the given parameters."""
    for number, group in enumerate(optimizer.param_groups):
        if "lr" not in group:
            raise ConfigError(
                f"{title}: group {number} of the optimizer has no 'lr', which the schedule multiplies",
                "give the optimizer's groups their learning rate as `lr`",
            )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left_out = [name for name, parameter in given.items() if id(parameter) not in held]
    if left_out or len(held) != len(given):
        fault = f"lacks {', '.join(left_out[:5])}" if left_out else "holds parameters that it was not given"
        raise ConfigError(f"{title}: the optimizer that make returned {fault}", "make it from `groups` as they are")
