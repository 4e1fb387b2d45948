"""The contract of interaction blocks: output size, cost, and how a config builds one.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, n outputs of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.core.parts import PartConfig
from ziggurat.interactions.counted_flops import FlopsUnknown, counted_flops

MASK = "mask"
"""Prefix of the names of boolean inputs."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a module from outside the package comes from, and for which shapes it was built.

    Attributes:
        title: its name in messages: the import reference that the config names, or else its class.
        inputs: name of an input of ``forward`` -> its shape without rows.
        output: the output's shape without rows.
        axes: the output's axes in words, such as ``(rows, fields, dims)``.
    """

    title: str
    inputs: Mapping[str, tuple[int, ...]]
    output: tuple[int, ...]
    axes: str

    def example(self, rows: int, device: torch.device) -> list[Tensor]:
        """Returns inputs of ``forward`` that hold zeros and set masks."""
        return [
            torch.ones(rows, *shape, dtype=torch.bool, device=device)
            if name.startswith(MASK)
            else torch.zeros(rows, *shape, device=device)
            for name, shape in self.inputs.items()
        ]


class Block(nn.Module, ABC):
    """A module (B, F, D) → (B, F', D), or, for a *head*, (B, F, D) → (B, n).

    A row's output depends on that row alone (batch norm in training mode is the one exception). It has the input's
    dtype and device and is differentiable in the input and in every parameter. Initial weights come from torch's global
    generator alone, so one ``torch.manual_seed`` fixes them.

    Costs are per example, for one forward pass:

    - matrix products count 2 per multiply-add, including results that are computed but not used, exactly as
      ``torch.utils.flop_counter.FlopCounterMode`` reports them;
    - element-wise products and sums that are part of the block's equation count 1 each;
    - biases, activations, norms, dropout and data movement are free.

    Attributes:
        out_features: the output's size along dimension 1: F' for a block, n for a head.
        origin: for a block from outside the package, where it comes from.
    """

    out_features: int
    origin: Origin | None = None

    def matmul_flops(self) -> int:
        """Returns the FLOPs of the matrix products, per example.

        A block from outside the package need not define it: they are then counted while rows pass through the block.

        Raises:
            FlopsUnknown: they are neither defined nor can be counted.
        """
        if self.origin is None:
            raise FlopsUnknown(f"{type(self).__qualname__} defines no matmul_flops()", "define it")
        return counted_flops(self, self.origin.example)

    def elementwise_flops(self) -> int:
        """Returns the FLOPs of the element-wise products and sums in the block's equation, per example."""
        return 0

    def flops(self) -> int:
        """Returns the forward FLOPs per example, under the convention of the class."""
        return self.matmul_flops() + self.elementwise_flops()


def known_flops(block: Block) -> int | None:
    """Returns the FLOPs of a block; None if they are neither defined nor can be counted."""
    try:
        return block.flops()
    except FlopsUnknown:
        return None


def checked_out_features(title: str, block: Block) -> int:
    """Returns the ``out_features`` of a block from outside the package.

    Raises:
        ConfigError: it is missing, or no positive number.
    """
    found = getattr(block, "out_features", None)
    if not isinstance(found, int) or found < 1:
        received = "no out_features" if found is None else f"out_features = {found!r}"
        raise ConfigError(
            f"{title}: build returned a block with {received}, expected a whole number of at least 1",
            "set self.out_features in __init__ to the number of fields that forward returns",
        )
    return found


class BlockSettings(PartConfig):
    """The base config of blocks (B, F, D) → (B, F', D) that a DHEN layer can combine."""

    @abstractmethod
    def build(self, features: int, dim: int) -> Block:
        """Returns the block, with fresh weights.

        Args:
            features: F.
            dim: D.

        Raises:
            ConfigError: the block cannot work with these sizes.
        """

    def build_checked(self, features: int, dim: int) -> Block:
        """Returns :meth:`build`'s block; one from outside the package is checked, and knows its origin.

        Raises:
            ConfigError: the block cannot work with these sizes, or ``build`` fails or returns something else.
        """
        block = self.checked_part(lambda: self.build(features, dim), Block)
        if self.reference is not None:
            output = (checked_out_features(self.title, block), dim)
            block.origin = Origin(self.title, {"emb_BFD": (features, dim)}, output, "(rows, out_features, dims)")
        return block
