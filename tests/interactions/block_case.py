"""One setting of one block, with a reference that shares only its parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ziggurat.interactions.block import Block


@dataclass(frozen=True)
class BlockCase:
    """One setting of one block.

    Attributes:
        name: the test's id.
        shape: the input's shape without rows.
        build: makes the block in its default dtype.
        reference: (block, inputs) → outputs, differentiable, sharing nothing with the block but its parameters.
        outputs: the expected output's shape without rows.
        flops: expected forward FLOPs per example, counted by hand.
    """

    name: str
    shape: tuple[int, ...]
    build: Callable[[], Block]
    reference: Callable[[Any, Tensor], Tensor]
    outputs: tuple[int, ...]
    flops: int
