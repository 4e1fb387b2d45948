"""Dense columns of numbers from sparse libsvm rows: one value per row in each column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]


class NumberColumns:
    """The values of selected keys (indices or field numbers), taken from the concatenated entries of all rows.

    Args:
        keys: the keys to select.
        entry_keys: the key of each entry.
        entry_rows: the row of each entry.
        values: float64, the value of each entry.
        rows: the number of rows.
    """

    def __init__(
        self,
        keys: Sequence[int],
        entry_keys: Integers,
        entry_rows: Integers,
        values: npt.NDArray[np.float64],
        rows: int,
    ) -> None:
        self._keys = np.array(sorted(keys), np.int64)
        selected = np.flatnonzero(np.isin(entry_keys, self._keys))
        ordered = selected[np.argsort(entry_keys[selected], kind="stable")]
        self._starts = np.searchsorted(entry_keys[ordered], self._keys, side="left")
        self._ends = np.searchsorted(entry_keys[ordered], self._keys, side="right")
        self._rows_of = entry_rows[ordered]
        self._values = values[ordered]
        self._rows = rows

    def column(self, key: int, absent: float | None) -> pa.Array:
        """Returns the float64 (rows,) column of one key; rows without it hold ``absent``, or null if that is None."""
        place = int(np.searchsorted(self._keys, key))
        span = slice(int(self._starts[place]), int(self._ends[place]))
        values = np.full(self._rows, 0.0 if absent is None else absent)
        values[self._rows_of[span]] = self._values[span]
        if absent is not None:
            return pa.array(values)
        missing = np.ones(self._rows, np.bool_)
        missing[self._rows_of[span]] = False
        return pa.array(values, mask=missing)


def has_repeated_keys(keys: Integers, entry_rows: Integers) -> bool:
    """Whether any row holds the same key twice."""
    order = np.lexsort((keys, entry_rows))
    keys, entry_rows = keys[order], entry_rows[order]
    return bool(((keys[1:] == keys[:-1]) & (entry_rows[1:] == entry_rows[:-1])).any())
