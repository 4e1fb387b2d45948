"""Rows that are read from files by whole blocks.

Shape legend: L rows that are looked up, M of them to read, W bytes of a row, S bytes of a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class RowReads:
    """Rows of one file to read.

    Attributes:
        file: a descriptor. If it was opened with O_DIRECT, S must be a multiple of what it requires.
        ids_L: the numbers of rows; row i begins at byte ``i // per_block * stride + i % per_block * width``.
        places_M: the places in ``ids_L`` of those to read, by rising id.
        rows_LW: where they go, contiguous.
        per_block: rows of a block.
        stride: S.
        most: reads of the file that may be in flight at a time.
    """

    file: int
    ids_L: Ints
    places_M: Ints
    rows_LW: Bytes
    per_block: int
    stride: int
    most: int

    def blocks(self) -> tuple[Ints, Ints]:
        """Returns the numbers of the blocks, and the place among them of each row (M,)."""
        return np.unique(self.ids_L[self.places_M] // self.per_block, return_inverse=True)

    def take(self, blocks_BS: Bytes, block_of_M: Ints) -> None:
        """Copies the rows out of their blocks."""
        width = self.rows_LW.shape[1]
        rows = blocks_BS[:, : self.per_block * width].reshape(len(blocks_BS), self.per_block, width)
        self.rows_LW[self.places_M] = rows[block_of_M, self.ids_L[self.places_M] % self.per_block]


def turns(blocks: Sequence[int], most_of: Sequence[int], most: int) -> Iterator[list[tuple[int, slice]]]:
    """Divides the reads of several files into such that may be in flight together.

    Args:
        blocks: blocks of each file.
        most_of: reads of each file at a time.
        most: reads of all files at a time.
    """
    start = [0] * len(blocks)
    while any(first < count for first, count in zip(start, blocks, strict=True)):
        left, turn = most, list[tuple[int, slice]]()
        for number in sorted(range(len(blocks)), key=lambda each: start[each] - blocks[each]):  # the longest first
            some = min(blocks[number] - start[number], most_of[number], left)
            if some > 0:
                turn.append((number, slice(start[number], start[number] + some)))
                start[number] += some
                left -= some
        yield turn
