"""The distinct values of a table's columns over all staged parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import ValueType


def value_kind(value_type: ValueType) -> pa.DataType:
    """Returns the Arrow type of a table's values."""
    return pa.int64() if value_type is ValueType.INTEGER else pa.string()


def merge_values(arrays: Sequence[pa.Array], value_type: ValueType) -> tuple[pa.Array, list[npt.NDArray[np.int32]]]:
    """Returns the distinct values of all arrays, and for each array the positions of its values among them."""
    kind = value_kind(value_type)
    encoded = iter(pa.chunked_array(arrays, kind).dictionary_encode().chunks)  # arrow leaves empty chunks out
    merged = pa.array([], kind)
    positions: list[npt.NDArray[np.int32]] = []
    for array in arrays:
        if len(array):
            chunk = next(encoded)
            merged = chunk.dictionary  # the same for all
            positions.append(chunk.indices.to_numpy())
        else:
            positions.append(np.empty(0, np.int32))
    return merged, positions
