"""The contract of tower modules and of their configs.

Shape legend: B rows, F fields of one tower, N their width, O output fields, D their width.
"""

from __future__ import annotations

from abc import abstractmethod

from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block


class TowerModule(Block):
    """A block (B, F, N) → (B, O, D). O is ``out_features``.

    Attributes:
        out_dim: D.
    """

    out_dim: int


class TowerModuleSettings(PartConfig):
    """The base of the configs of tower modules."""

    @abstractmethod
    def build(self, features: int, dim: int) -> TowerModule:
        """Returns the module of one tower, with fresh weights from torch's global generator.

        Args:
            features: F.
            dim: N.

        Raises:
            ConfigError: the module cannot work with these sizes.
        """

    @abstractmethod
    def out_features(self, features: int) -> int:
        """Returns O for a tower of F fields."""

    @abstractmethod
    def out_dim(self, dim: int) -> int:
        """Returns D for fields of N floats."""
