"""What a part of a model costs, and distributions of widths, of which expected costs are made.

The cost of an architecture is a sum over its parts, and the decisions are independent. The expected cost is therefore a
sum, over the parts, of the cost of each variant of a part times the probability of that variant. No sampling is needed,
and the cost of one architecture is the expected cost at probabilities of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ziggurat.interactions.block import Block

Width = Mapping[int, Tensor]
"""A number that depends on decisions: value -> its probability, a float64 scalar that is differentiable in them."""


class PartCost(Protocol):
    """Costs of parts, in one unit for each row."""

    def of(self, key: str, build: Callable[[], Block], shape: tuple[int, ...]) -> float:
        """Returns the cost of a part.

        Args:
            key: what distinguishes the part from others: parts with equal keys cost the same.
            build: builds it, with weights on torch's default device.
            shape: the shape of its input, without rows.
        """
        ...


class FlopsCost:
    """Forward FLOPs per row, by the convention of :class:`~ziggurat.interactions.block.Block`."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def of(self, key: str, build: Callable[[], Block], shape: tuple[int, ...]) -> float:
        """Returns the FLOPs of the block, which is built without memory for its weights.

        Raises:
            FlopsUnknown: they are neither defined nor can be counted.
        """
        if key not in self._known:
            with torch.device("meta"):
                self._known[key] = float(build().flops())
        return self._known[key]


class Recorder:
    """A :class:`PartCost` of nothing that records which parts were asked for.

    Attributes:
        parts: key -> what builds the part, and the shape of its input, without rows.
    """

    def __init__(self) -> None:
        self.parts: dict[str, tuple[Callable[[], Block], tuple[int, ...]]] = {}

    def of(self, key: str, build: Callable[[], Block], shape: tuple[int, ...]) -> float:
        """Returns 0."""
        self.parts.setdefault(key, (build, shape))
        return 0.0


def fixed(width: int) -> Width:
    """Returns a width that no decision changes."""
    return {width: torch.ones((), dtype=torch.float64)}


def mixed(alternatives: list[tuple[Tensor, Width]]) -> Width:
    """Returns the width that is one of several, each (probability, width)."""
    found: dict[int, Tensor] = {}
    for probability, width in alternatives:
        for value, share in width.items():
            found[value] = found.get(value, 0.0) + probability * share  # pyright: ignore[reportArgumentType]
    return found


def expected(width: Width, cost: Callable[[int], float]) -> Tensor:
    """Returns Σ over the values of a width of probability · cost(value)."""
    return torch.stack([share * cost(value) for value, share in width.items()]).sum()
