"""The contract of heads, which map the representation of a row to one logit per task.

Shape legend: B rows, N numbers of the representation, T tasks.
"""

from __future__ import annotations

from abc import abstractmethod

from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block, Origin


class HeadSettings(PartConfig):
    """The base config of heads."""

    @abstractmethod
    def build(self, inputs: int, tasks: int) -> Block:
        """Returns the head (B, N) → (B, T), with fresh weights.

        Args:
            inputs: N.
            tasks: T.
        """

    def build_checked(self, inputs: int, tasks: int) -> Block:
        """Returns :meth:`build`'s head; one from outside the package is checked, and knows its origin.

        Raises:
            ConfigError: ``build`` fails or returns something else.
        """
        head = self.checked_part(lambda: self.build(inputs, tasks), Block)
        if self.reference is not None:
            head.origin = Origin(self.title, {"row_BN": (inputs,)}, (tasks,), "(rows, tasks)")
        return head
