"""Raw Arrow columns as numpy: numbers with NaN for missing, ids as codes into the distinct values of their block.

A code is the position of a value among the block's distinct values; ``len(values)`` stands for a missing value. Every
later step (counting, encoding, writing) handles small integers; the values themselves are looked up once a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # made at import, so unknown to type checkers

CodeArray = npt.NDArray[np.integer[Any]]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of one column.

    Attributes:
        codes: one a row, or those of all rows end to end where ``offsets`` is given.
        offsets: int64 (rows + 1,), row i holds ``codes[offsets[i]:offsets[i + 1]]``; None for one code a row.
        missing: bool (rows,), lists that are missing rather than empty; None where there are none.
    """

    codes: CodeArray
    offsets: npt.NDArray[np.int64] | None = None
    missing: npt.NDArray[np.bool_] | None = None

    @property
    def rows(self) -> int:
        return len(self.codes) if self.offsets is None else len(self.offsets) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Codes in each row of a list column."""
        assert self.offsets is not None
        return np.diff(self.offsets)

    def take(self, rows: Rows) -> Codes:
        """The given rows, in the given order."""
        if self.offsets is None:
            return Codes(self.codes[rows])
        missing = None if self.missing is None else self.missing[rows]
        return self._spans(self.offsets[rows], self.offsets[rows + 1], missing)

    def first(self, length: int) -> Codes:
        """At most the first ``length`` codes of each row."""
        assert self.offsets is not None
        starts, ends = self.offsets[:-1], self.offsets[1:]
        return self._spans(starts, np.minimum(ends, starts + length), self.missing)

    def last(self, length: int) -> Codes:
        """At most the last ``length`` codes of each row."""
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
    """An int64 or float64 column as float64, NaN for null."""
    floats = pc.cast(plain(column), pa.float64(), safe=False)
    return floats.fill_null(float("nan")).to_numpy() if floats.null_count else floats.to_numpy()


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column's values, without the dictionary that a reader may have encoded them with."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def encode_column(column: pa.ChunkedArray) -> tuple[pa.Array, Codes]:
    """The distinct values (int64 or string, no nulls) of an id column, and its codes.

    Accepts what a :class:`~ziggurat.data.readers.blocks.RawBlock` may hold: values or lists, dictionary-encoded or not.
    """
    array = _contiguous(column)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        values, codes = _encode(array)
        return values, Codes(codes)
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values, codes = _encode(array.flatten())  # leaves out what null lists may hide
    return values, Codes(codes, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), missing)


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        unifiable = not any(chunk.dictionary.null_count for chunk in column.chunks)
        column = column.unify_dictionaries() if unifiable else plain(column)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _encode(array: pa.Array) -> tuple[pa.Array, CodeArray]:
    given = pa.types.is_dictionary(array.type)
    if given and array.dictionary.null_count:  # a dictionary may hold null as a value
        array, given = array.cast(array.type.value_type), False
    encoded = array if given else array.dictionary_encode()
    values, indices = encoded.dictionary, encoded.indices
    if not pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    codes: CodeArray = (indices.fill_null(len(values)) if indices.null_count else indices).to_numpy()
    return _used(values, codes) if given else (values, codes)


def _used(values: pa.Array, codes: CodeArray) -> tuple[pa.Array, CodeArray]:
    """Without the values of a given dictionary that no row holds: a refused row may have been the only one."""
    used = np.bincount(codes, minlength=len(values) + 1) > 0
    used[-1] = True  # missing
    if used.all():
        return values, codes
    renumbered = np.cumsum(used) - 1
    return values.take(pa.array(np.flatnonzero(used[:-1]))), renumbered[codes]
