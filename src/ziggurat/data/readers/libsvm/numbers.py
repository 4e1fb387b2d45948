"""The columns of libsvm rows that hold numbers: for each of them one value a row, however sparse the file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]


class NumberColumns:
    """Values of chosen keys (indices, or numbers of fields) from entries that lie end to end.

    Args:
        keys: what to choose.
        of_entries: the key of each entry.
        rows_of: the row of each entry.
        values: float64, the value of each entry.
        rows: how many rows there are.
    """

    def __init__(
        self, keys: Sequence[int], of_entries: Integers, rows_of: Integers, values: npt.NDArray[np.float64], rows: int
    ) -> None:
        self._keys = np.array(sorted(keys), np.int64)
        chosen = np.flatnonzero(np.isin(of_entries, self._keys))
        ordered = chosen[np.argsort(of_entries[chosen], kind="stable")]
        self._starts = np.searchsorted(of_entries[ordered], self._keys, side="left")
        self._ends = np.searchsorted(of_entries[ordered], self._keys, side="right")
        self._rows_of = rows_of[ordered]
        self._values = values[ordered]
        self._rows = rows

    def column(self, key: int, absent: float | None) -> pa.Array:
        """float64 (rows,) of one key; ``absent`` in rows without it, where None is null."""
        place = int(np.searchsorted(self._keys, key))
        span = slice(int(self._starts[place]), int(self._ends[place]))
        values = np.full(self._rows, 0.0 if absent is None else absent)
        values[self._rows_of[span]] = self._values[span]
        if absent is not None:
            return pa.array(values)
        missing = np.ones(self._rows, np.bool_)
        missing[self._rows_of[span]] = False
        return pa.array(values, mask=missing)


def repeated(keys: Integers, rows_of: Integers) -> bool:
    """Whether a row holds one of ``keys`` twice."""
    order = np.lexsort((keys, rows_of))
    keys, rows_of = keys[order], rows_of[order]
    return bool(((keys[1:] == keys[:-1]) & (rows_of[1:] == rows_of[:-1])).any())
