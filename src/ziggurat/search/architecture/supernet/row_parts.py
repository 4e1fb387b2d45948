"""Divides the training rows: most train the weights, the others the architecture. No row does both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ziggurat.data.encoded.dataset import SplitBlocks


@dataclass(frozen=True, slots=True)
class RowPart:
    """A part of the rows of a split, chosen within each block by a permutation that its number and the seed decide.

    Attributes:
        blocks: the split.
        share: the share of the rows of a block that are held out.
        held_out: whether these are the rows that were held out, or the others.
        seed: decides which rows are held out.
    """

    blocks: SplitBlocks
    share: float
    held_out: bool
    seed: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows in each block."""
        return tuple(self._size(rows) for rows in self.blocks.sizes)

    @property
    def rows(self) -> int:
        return sum(self.sizes)

    def read(self, block: int) -> pa.RecordBatch:
        """Returns the rows of one block, copied, in file order."""
        whole = self.blocks.read(block)
        return whole.take(pa.array(self.places(block, whole.num_rows)))

    def places(self, block: int, rows: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Returns which of the ``rows`` rows of a block are of this part, ascending."""
        order = np.random.default_rng([self.seed, block]).permutation(rows)
        held = round(self.share * rows)
        return np.sort(order[:held] if self.held_out else order[held:])

    def _size(self, rows: int) -> int:
        held = round(self.share * rows)
        return held if self.held_out else rows - held
