"""The contract of heads, which map the representation of a row to one logit per task.

Shape legend: B rows, N numbers of the representation, T tasks.
"""

from __future__ import annotations

from abc import abstractmethod

from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block


class HeadSettings(PartConfig):
    """The base config of heads."""

    @abstractmethod
    def build(self, inputs: int, tasks: int) -> Block:
        """Returns the head (B, N) → (B, T), with fresh weights.

        Args:
            inputs: N.
            tasks: T.
        """
