"""What every sequence encoder promises: the vectors of a sequence's positions become one.

Shape legend: B rows, S positions, D dims of a position's vector.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block


class SequenceEncoder(Block):
    """(B, S, D), mask (B, S) and, for those that read it, target (B, D) → (B, D).

    Position 0 is the most recent, so that positions mean the same in long and short sequences. Where the mask is
    False a row has no such position, and its vector may hold any finite numbers. A row without any gives zeros.
    Costs are those of S positions, present or not, under the convention of the base class.
    """

    @abstractmethod
    def forward(self, positions_BSD: Tensor, mask_BS: Tensor, target_BD: Tensor | None = None) -> Tensor:
        """One vector a row, (B, D)."""


class SequenceEncoderSettings(PartConfig):
    """The base config of sequence encoders."""

    @property
    def target_feature(self) -> str | None:
        """The feature whose vector the encoder reads beside the sequence, if any."""
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


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax along the last dimension over the places where ``mask`` is True, 0 elsewhere; all 0 where none is."""
    shares = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-1)
    return shares * mask
