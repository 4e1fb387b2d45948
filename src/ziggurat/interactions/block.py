"""The contract of interaction blocks: output size, cost, and how a config builds one.

Shape legend: B rows, F fields in, F' fields out, D embedding dim, n outputs of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn

from ziggurat.core.parts import PartConfig


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
    """

    out_features: int

    @abstractmethod
    def matmul_flops(self) -> int:
        """Returns the FLOPs of the matrix products, per example."""

    def elementwise_flops(self) -> int:
        """Returns the FLOPs of the element-wise products and sums in the block's equation, per example."""
        return 0

    def flops(self) -> int:
        """Returns the forward FLOPs per example, under the convention of the class."""
        return self.matmul_flops() + self.elementwise_flops()


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
