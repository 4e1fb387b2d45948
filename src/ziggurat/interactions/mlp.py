"""The multi-layer perceptron: the deep part of every model and the bottom of DLRM.

Shape legend: B rows, F fields, D embedding dim, N = F·D inputs, n outputs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from ziggurat.core.config import Config
from ziggurat.interactions.block import Block
from ziggurat.interactions.dropout import Dropout

Activation = Literal["relu", "leaky_relu", "gelu", "silu", "tanh"]
Norm = Literal["none", "batch", "layer"]


class BatchNorm(nn.BatchNorm1d):
    """Batch norm that accepts a training batch of one row, which an epoch's last batch can be.

    One row has no variance, so it is normalised by the running statistics, which it does not update.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (torch's parameter name)
        if not self.training or len(input) > 1:
            return super().forward(input)
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}
_NORMS: dict[Norm, type[nn.Module]] = {"none": nn.Identity, "batch": BatchNorm, "layer": nn.LayerNorm}


class MLP(Block):
    """Hidden layers ``dropout(activation(norm(W x + b)))`` and, if ``outputs`` is given, one linear layer after them.

    A hidden layer that ``skips`` names adds its input to its output: as many of the first numbers as both have.

    Takes (B, N), or (B, F, D) with F·D = N, which it flattens; returns (B, n).

    Args:
        inputs: N, at least 1.
        config: the hidden layers; there may be none.
        outputs: n, the width of a last layer without norm, activation and dropout. None leaves that layer out; n is
            then the width of the last hidden layer, or N without hidden layers.
    """

    class Config(Config):
        """The hidden layers."""

        hidden: tuple[Annotated[int, Field(ge=1)], ...] = (256, 128)
        """Width of each hidden layer, in order; an empty list leaves only the output layer."""

        activation: Activation = "relu"
        """Applied after each hidden layer."""

        norm: Norm = "none"
        """Normalisation between a hidden layer's matrix product and its activation."""

        dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
        """Fraction of each hidden layer's outputs that is set to zero in training."""

        skips: tuple[Annotated[int, Field(ge=1)], ...] = ()
        """The hidden layers, numbered from 1, that add their input to their output; the shorter of the two is padded
        with zeros, the longer input cut."""

        @model_validator(mode="after")
        def _skips_are_layers(self) -> Self:
            ascending = list(self.skips) == sorted(set(self.skips))
            if self.skips and (not ascending or self.skips[-1] > len(self.hidden)):
                raise ValueError(f"skips is {list(self.skips)}; list layers from 1 to {len(self.hidden)}, ascending")
            return self

    def __init__(self, inputs: int, config: MLP.Config, outputs: int | None = None) -> None:
        super().__init__()
        assert inputs >= 1, inputs
        self.widths = (inputs, *config.hidden, *(() if outputs is None else (outputs,)))
        self.out_features = self.widths[-1]
        layers: list[nn.Module] = []
        self._skips, self._ends = frozenset(config.skips), list[int]()
        for width, following in pairwise((inputs, *config.hidden)):
            layers.append(nn.Linear(width, following))
            if config.norm != "none":
                layers.append(_NORMS[config.norm](following))
            layers.append(_ACTIVATIONS[config.activation]())
            if config.dropout > 0:
                layers.append(Dropout(config.dropout))
            self._ends.append(len(layers))
        if outputs is not None:
            layers.append(nn.Linear(self.widths[-2], outputs))
        self.layers = nn.Sequential(*layers)

    def forward(self, inputs: Tensor) -> Tensor:
        if not self._skips:
            return self.layers(inputs.flatten(1))
        state_BN, modules, start = inputs.flatten(1), list(self.layers), 0
        for number, end in enumerate((*self._ends, len(modules)), start=1):
            before_BN = state_BN
            for module in modules[start:end]:
                state_BN = module(state_BN)
            if number in self._skips:
                state_BN = state_BN + resized(before_BN, state_BN.shape[1])
            start = end
        return state_BN

    def matmul_flops(self) -> int:
        return sum(2 * width * following for width, following in pairwise(self.widths))

    def elementwise_flops(self) -> int:
        """Counts the sums of the layers that add their input."""
        return sum(min(self.widths[number - 1], self.widths[number]) for number in self._skips)


def resized(state_BN: Tensor, width: int) -> Tensor:
    """Returns the first ``width`` numbers of each row, padded with zeros if there are fewer."""
    have = state_BN.shape[1]
    return state_BN[:, :width] if have >= width else F.pad(state_BN, (0, width - have))
