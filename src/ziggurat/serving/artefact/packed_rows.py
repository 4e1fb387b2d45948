"""A file of rows of equal size, which can be mapped into memory and read with O_DIRECT alike.

The file consists of blocks of 4,096 bytes. As many whole rows as fit stand at the beginning of a block, so that a row
of up to 4,096 bytes is read with one block; a longer row begins at a block and takes as many as it needs. What is left
of a block is 0. Rows are in the order of their ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from ziggurat.serving.artefact.row_codec import Bytes

BLOCK = 4096
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Where the rows of a file are.

    Attributes:
        rows: how many there are.
        width: bytes of a row.
    """

    rows: int
    width: int

    @property
    def per_block(self) -> int:
        """Rows of a block; 1 if a row is longer than one."""
        return max(1, BLOCK // self.width)

    @property
    def stride(self) -> int:
        """Bytes from one group of ``per_block`` rows to the next: whole blocks."""
        return BLOCK * -(-self.width // BLOCK) if self.width > BLOCK else BLOCK

    @property
    def bytes(self) -> int:
        """Bytes of the file."""
        return -(-self.rows // self.per_block) * self.stride

    def offsets(self, ids: Ints) -> Ints:
        """Returns where rows begin."""
        return ids // self.per_block * self.stride + ids % self.per_block * self.width

    def view(self, mapped: Bytes) -> Bytes:
        """Returns the rows of a whole file in memory, (groups, per_block, width), without copying them."""
        groups = mapped[: self.bytes].reshape(-1, self.stride)
        return groups[:, : self.per_block * self.width].reshape(len(groups), self.per_block, self.width)

    def gather(self, mapped: Bytes, ids: Ints) -> Bytes:
        """Returns rows of a whole file in memory, (len(ids), width)."""
        return self.view(mapped)[ids // self.per_block, ids % self.per_block]

    def write(self, file: BinaryIO, rows_UW: Bytes) -> None:
        """Writes rows behind those that were written before, whose number is a multiple of ``per_block``."""
        groups = -(-len(rows_UW) // self.per_block)
        out = np.zeros((groups, self.stride), np.uint8)
        whole = len(rows_UW) // self.per_block
        used = self.per_block * self.width
        out[:whole, :used] = rows_UW[: whole * self.per_block].reshape(whole, used)
        rest = rows_UW[whole * self.per_block :]
        if len(rest):
            out[whole, : len(rest) * self.width] = rest.reshape(-1)
        file.write(out.tobytes())
