"""The contract of sequence encoders, which pool the vectors of a sequence's positions into one.

Shape legend: B rows, S positions, D dims of a position's vector.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block, Origin


class SequenceEncoder(Block):
    """(B, S, D), mask (B, S) and, for encoders that read it, target (B, D) → (B, D).

    Position 0 is the most recent, so a position means the same in long and short sequences. Where the mask is False the
    row has no such position, and the vector there may hold any finite numbers. A row without positions gives zeros.
    Costs count all S positions, present or not, under the convention of the base class.
    """

    @abstractmethod
    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        """Returns one vector per row, (B, D)."""


class SequenceEncoderSettings(PartConfig):
    """The base config of sequence encoders."""

    @property
    def target_feature(self) -> str | None:
        """The feature whose vector the encoder reads as the target, or None."""
        return None

    @abstractmethod
    def build(self, positions: int, dim: int) -> SequenceEncoder:
        """Returns the encoder, with fresh weights.

        Args:
            positions: S.
            dim: D.

        Raises:
            ConfigError: the encoder cannot work with these sizes.
        """

    def build_checked(self, positions: int, dim: int) -> SequenceEncoder:
        """Returns :meth:`build`'s encoder; one from outside the package is checked, and knows its origin.

        Raises:
            ConfigError: the encoder cannot work with these sizes, or ``build`` fails or returns something else.
        """
        encoder = self.checked_part(lambda: self.build(positions, dim), SequenceEncoder)
        if self.reference is not None:
            inputs = {"positions_BSD": (positions, dim), "mask_BS": (positions,)}
            if self.target_feature is not None:
                inputs["target_BD"] = (dim,)
            encoder.origin = Origin(self.title, inputs, (dim,), "(rows, dims)")
        return encoder


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns the softmax over the last dimension where ``mask`` is True, and 0 elsewhere.

    All are 0 where the mask is False everywhere.
    """
    shares = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-1)
    return shares * mask
