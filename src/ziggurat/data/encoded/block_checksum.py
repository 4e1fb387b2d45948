"""The checksum of a block of encoded rows: of its values, not of the bytes around them.

It covers the numbers of every column in the schema's order, and of a list column the offsets, counted from the block's
first value, and then the values. Padding, and where Arrow has placed a buffer in a file or message, do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.digests import digest_of_parts


def block_checksum(block: pa.RecordBatch) -> str:
    """Returns the checksum of a block without nulls.

    Raises:
        ArrowInvalid: the block has nulls.
    """
    return digest_of_parts(part for column in block.columns for part in _parts(column))


def _parts(column: pa.Array) -> Iterator[npt.NDArray[Any]]:
    """Yields what a column consists of, as the views through which batches are gathered."""
    if not pa.types.is_list(column.type):
        yield column.to_numpy(zero_copy_only=True)
        return
    offsets = column.offsets.to_numpy(zero_copy_only=True)
    yield offsets - offsets[0] if offsets[0] else offsets
    yield column.values.to_numpy(zero_copy_only=True)[offsets[0] : offsets[-1]]
