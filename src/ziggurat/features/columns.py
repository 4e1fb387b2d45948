"""Converts raw Arrow columns to numpy: numbers with NaN for missing values, and ids as codes.

A code is the position of a value among the distinct values of its block; the code ``len(values)`` is a missing value.
Every later step (counting, encoding, writing) handles these small integers; the values themselves are looked up once
per block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its functions are generated at import, so type checkers do not know them

CodeArray = npt.NDArray[np.integer[Any]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of one column.

    Attributes:
        codes: one code per row; if ``offsets`` is given, the concatenated codes of all rows.
        offsets: int64 (rows + 1,): row i has ``codes[offsets[i]:offsets[i + 1]]``; None for one code per row.
        missing: bool (rows,): whether a list is missing rather than empty; None if there are no missing lists.
    """

    codes: CodeArray
    offsets: npt.NDArray[np.int64] | None = None
    missing: npt.NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        return len(self.codes) if self.offsets is None else len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of codes in each row of a list column."""
        assert self.offsets is not None
        return np.diff(self.offsets)

    def take(self, rows: Rows) -> Codes:
        """Returns these rows, in this order."""
        if self.offsets is None:
            return Codes(self.codes[rows])
        missing = None if self.missing is None else self.missing[rows]
        return self._spans(self.offsets[rows], self.offsets[rows + 1], missing)

    def first(self, length: int) -> Codes:
        """Returns at most the first ``length`` codes of each row."""
        assert self.offsets is not None
        starts, ends = self.offsets[:-1], self.offsets[1:]
        return self._spans(starts, np.minimum(ends, starts + length), self.missing)

    def last(self, length: int) -> Codes:
        """Returns at most the last ``length`` codes of each row."""
        assert self.offsets is not None
        starts, ends = self.offsets[:-1], self.offsets[1:]
        return self._spans(np.maximum(starts, ends - length), ends, self.missing)

    def _spans(
        self, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_] | None
    ) -> Codes:
        lengths = ends - starts
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        position = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Codes(self.codes[position], offsets, missing)


def numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Returns an int64 or float64 column as float64, with NaN for null."""
    floats = pc.cast(plain(column), pa.float64(), safe=False)
    return floats.fill_null(float("nan")).to_numpy() if floats.null_count else floats.to_numpy()


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column without dictionary encoding, which a reader may have applied."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def encode_column(column: pa.ChunkedArray) -> tuple[pa.Array, Codes]:
    """Returns the distinct values (int64 or string, without null) of an id column, and its codes.

    Accepts every column of a :class:`~ziggurat.data.readers.blocks.RawBlock`: values or lists, with or without
    dictionary encoding.
    """
    array = _contiguous(column)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values, codes = _encode(array)
        return values, Codes(codes)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values, codes = _encode(array.flatten())  # leaves out values that null lists may hide
    return values, Codes(codes, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), missing)


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        unifiable = not any(chunk.dictionary.null_count for chunk in column.chunks)
        column = column.unify_dictionaries() if unifiable else plain(column)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _encode(array: pa.Array) -> tuple[pa.Array, CodeArray]:
    is_dictionary = pa.types.is_dictionary(array.type)
    if is_dictionary and array.dictionary.null_count:  # null may be a value of a dictionary
        array, is_dictionary = array.cast(array.type.value_type), False
    encoded = array if is_dictionary else array.dictionary_encode()
    values, indices = encoded.dictionary, encoded.indices
    if not pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    codes: CodeArray = (indices.fill_null(len(values)) if indices.null_count else indices).to_numpy()
    return _drop_unused(values, codes) if is_dictionary else (values, codes)


def _drop_unused(values: pa.Array, codes: CodeArray) -> tuple[pa.Array, CodeArray]:
    """Drops values that no row has: the only row with a value may have been rejected."""
    used = np.bincount(codes, minlength=len(values) + 1) > 0
    used[-1] = True  # missing
    if used.all():
        return values, codes
    renumbered = np.cumsum(used) - 1
    return values.take(pa.array(np.flatnonzero(used[:-1]))), renumbered[codes]
