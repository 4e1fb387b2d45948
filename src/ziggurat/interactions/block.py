"""What every interaction block promises: its output's width and its cost.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, n outputs of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from ziggurat.core.parts import PartConfig


class Block(nn.Module, ABC):
    """A module (B, F, D) → (B, F', D), or, for a *head*, (B, F, D) → (B, n).

    A row's output depends on that row alone (batch norm in training mode is the one exception), has the input's dtype
    and device, and is differentiable in the input and in every parameter. Initial weights come from torch's global
    generator and from nothing else, so one ``torch.manual_seed`` fixes them.

    Costs are per example, for one forward pass:

    - matrix products count 2 per multiply-add, what is computed and not what is used: exactly what
      ``torch.utils.flop_counter.FlopCounterMode`` reports;
    - element-wise products and sums that are part of the block's equation count 1 each;
    - biases, activations, norms, dropout and data movement are free.

    Attributes:
        out_features: the output's size along dimension 1: F' for a block, n for a head.
    """

    out_features: int

    @abstractmethod
    def matmul_flops(self) -> int:
        """FLOPs of the matrix products, per example."""

    def elementwise_flops(self) -> int:
        """FLOPs of the element-wise products and sums of the block's equation, per example."""
        return 0

    def flops(self) -> int:
        """Forward FLOPs per example, under the convention of the class."""
        return self.matmul_flops() + self.elementwise_flops()


class BlockSettings(PartConfig):
    """The base config of blocks (B, F, D) → (B, F', D) that can stand side by side in a layer of DHEN."""

    @abstractmethod
    def build(self, features: int, dim: int) -> Block:
        """Returns the block, with fresh weights.

        Args:
            features: F.
            dim: D.

        Raises:
            ConfigError: the block cannot work with these sizes.
        """
