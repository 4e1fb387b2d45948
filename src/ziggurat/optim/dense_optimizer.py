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
            ConfigError: there is nothing to optimize.
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
        return self.make(groups)
