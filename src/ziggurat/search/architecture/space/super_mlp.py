"""An MLP whose widths, depth and skips are decisions.

Shape legend: B rows, N numbers of a row, n outputs, W the widest a layer's output can be.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ziggurat.core.config import Config
from ziggurat.interactions.mlp import MLP, Activation, Norm, resized
from ziggurat.search.architecture.space.cost import PartCost, Width, expected, fixed, mixed
from ziggurat.search.architecture.space.decision import Decision, Mask, Masks, Probabilities

LEFT_OUT = 0
"""The width that stands for a layer that is left out."""


class MLPChoices(Config):
    """The hidden layers that an MLP may have. A list of one width, ``[64]``, fixes it."""

    layers: Annotated[int, Field(ge=0, le=16)] = 3
    """The most hidden layers."""

    widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (32, 64, 128, 256)
    """The widths that each layer may have."""

    optional: bool = True
    """Whether each layer may also be left out, so that the depth is found, too."""

    skips: bool = True
    """Whether each layer may add its input to its output."""

    activation: Activation | None = None
    """Applied after each hidden layer; default: that of the largest MLP of the config's model, or ``relu``."""

    norm: Norm = "none"
    """Normalisation before each activation. ``layer`` needs a single width, as it reads all numbers of a layer."""

    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Fraction of each hidden layer's outputs that is set to zero in training; default: that of the largest MLP of the
    config's model, or 0."""

    @model_validator(mode="after")
    def _are_distinct(self) -> MLPChoices:
        if len(set(self.widths)) < len(self.widths):
            raise ValueError(f"widths is {list(self.widths)}; list each width once")
        if self.norm == "layer" and len(self.widths) > 1:
            raise ValueError(
                f"norm is layer, with the widths {list(self.widths)}: it would read the numbers of widths that are not "
                "chosen; use norm: batch or none, or a single width"
            )
        return self

    def decisions(self, prefix: str) -> tuple[Decision, ...]:
        """Returns the decisions of all layers, ``PREFIX.LAYER.width`` and ``PREFIX.LAYER.skip``, layers from 1."""
        widths = (*self.widths, *((LEFT_OUT,) if self.optional else ()))
        found: list[Decision] = []
        for layer in range(1, self.layers + 1):
            found.append(Decision(f"{prefix}.{layer}.width", widths, widths.index(max(widths))))
            if self.skips:
                found.append(Decision(f"{prefix}.{layer}.skip", (False, True)))
        return tuple(found)

    def config(self, prefix: str, values: dict[str, Any]) -> MLP.Config:
        """Returns the MLP of an architecture.

        Args:
            prefix: that of :meth:`decisions`.
            values: name of a decision -> its value.
        """
        hidden: list[int] = []
        skips: list[int] = []
        for layer in range(1, self.layers + 1):
            width = values[f"{prefix}.{layer}.width"]
            if width == LEFT_OUT:
                continue
            hidden.append(width)
            if values.get(f"{prefix}.{layer}.skip", False):
                skips.append(len(hidden))
        return self._mlp(tuple(hidden), tuple(skips))

    def layer(self, width: int, *, skip: bool = False) -> MLP.Config:
        """Returns one hidden layer."""
        return self._mlp((width,), (1,) if skip else ())

    def _mlp(self, hidden: tuple[int, ...], skips: tuple[int, ...]) -> MLP.Config:
        activation, dropout = self.activation or "relu", self.dropout or 0.0
        return MLP.Config(hidden=hidden, activation=activation, norm=self.norm, dropout=dropout, skips=skips)

    def out_width(self, prefix: str, inputs: int, probabilities: Probabilities) -> Width:
        """Returns the width of the last hidden layer's output."""
        width = fixed(inputs)
        for layer in range(1, self.layers + 1):
            width = self._after(prefix, layer, width, probabilities)
        return width

    def expected_cost(self, prefix: str, inputs: int, probabilities: Probabilities, cost: PartCost) -> Tensor:
        """Returns the expected cost of the hidden layers over N = ``inputs`` numbers."""
        width, total = fixed(inputs), torch.zeros((), dtype=torch.float64)
        for layer in range(1, self.layers + 1):
            shares = probabilities[f"{prefix}.{layer}.width"]
            skip = probabilities[f"{prefix}.{layer}.skip"][1] if self.skips else None
            for following, share in zip(self.widths, shares, strict=False):  # a layer left out costs nothing
                plain = expected(width, lambda n, w=following: self._cost(n, w, False, cost))
                if skip is None:
                    total = total + share * plain
                else:
                    added = expected(width, lambda n, w=following: self._cost(n, w, True, cost))
                    total = total + share * ((1 - skip) * plain + skip * added)
            width = self._after(prefix, layer, width, probabilities)
        return total

    def _cost(self, inputs: int, width: int, skip: bool, cost: PartCost) -> float:
        one = self.layer(width, skip=skip)
        key = f"hidden {inputs} {width} {one.activation} {one.norm} {one.dropout}{' skip' if skip else ''}"
        return cost.of(key, lambda: MLP(inputs, one), (inputs,))

    def _after(self, prefix: str, layer: int, width: Width, probabilities: Probabilities) -> Width:
        shares = probabilities[f"{prefix}.{layer}.width"]
        alternatives = [(share, fixed(each)) for each, share in zip(self.widths, shares, strict=False)]
        return mixed([*alternatives, (shares[-1], width)] if self.optional else alternatives)


def output_cost(width: Width, outputs: int, cost: PartCost) -> Tensor:
    """Returns the expected cost of a linear layer from a width to ``outputs`` numbers."""
    plain = MLP.Config(hidden=())
    return expected(width, lambda n: cost.of(f"linear {n} {outputs}", lambda: MLP(n, plain, outputs), (n,)))


class SuperMLP(nn.Module):
    """(B, N) → (B, W): all hidden layers of an :class:`MLPChoices` at their greatest widths, masked.

    Each layer is a house :class:`~ziggurat.interactions.mlp.MLP` of one hidden layer. The mask keeps the first numbers
    of its output: number j has the share of the choices that are wider than j. What follows reads zeros in place of the
    numbers that a narrower layer lacks, and computes what it would without them. A layer that is left out passes on its
    input.

    Args:
        choices: the layers that there may be.
        prefix: the prefix of their decisions.
        inputs: N.

    Attributes:
        out_features: W.
    """

    def __init__(self, choices: MLPChoices, prefix: str, inputs: int) -> None:
        super().__init__()
        self.choices, self.prefix = choices, prefix
        self.widest = max(choices.widths)
        layers: list[MLP] = []
        for _ in range(choices.layers):
            layers.append(MLP(inputs, choices.layer(self.widest)))
            inputs = max(inputs, self.widest) if choices.optional else self.widest
        self.layers = nn.ModuleList(layers)
        self.out_features = inputs
        kept = torch.tensor([[float(column < width) for column in range(self.widest)] for width in choices.widths])
        self.register_buffer("kept", kept, persistent=False)
        self.kept: Tensor

    def forward(self, state_BN: Tensor, masks: Masks) -> Tensor:
        for number, layer in enumerate(self.layers, start=1):
            skip = masks.get(f"{self.prefix}.{number}.skip")
            state_BN = self._layer(layer, state_BN, masks[f"{self.prefix}.{number}.width"], skip)
        return state_BN

    def _layer(self, layer: nn.Module, state_BN: Tensor, width: Mask, skip: Mask | None) -> Tensor:
        out = max(state_BN.shape[1], self.widest) if self.choices.optional else self.widest
        if self.choices.optional and width.hard == len(self.choices.widths):
            return resized(state_BN, out)
        output_BW: Tensor = layer(state_BN)
        if skip is not None and skip.hard is None:
            output_BW = output_BW + skip.shares[1] * resized(state_BN, self.widest)
        elif skip is not None and skip.hard == 1:
            output_BW = output_BW + resized(state_BN, self.widest)
        count = len(self.choices.widths)
        if count > 1 or width.hard is None:
            output_BW = output_BW * (width.shares[:count].to(output_BW.device) @ self.kept)
        if width.hard is not None or not self.choices.optional:
            return resized(output_BW, out)
        return resized(output_BW, out) + width.shares[count] * resized(state_BN, out)
