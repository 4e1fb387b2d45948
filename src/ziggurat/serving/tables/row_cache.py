"""A cache of a table's rows, as bytes: compact for small rows, with an index for large ones.

Sets of eight rows, chosen by a hash of the id; of a set, the row that was used least recently is replaced. A compact
cache finds a row by comparing the eight ids of its set, and costs 12 bytes a row beside the row. One with an index
finds it in one step, and costs four bytes more for each row *of the table*: worth it where rows are long. Threads may
share a cache. Shape legend: L ids, W bytes of a row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.serving.artefact.row_codec import Bytes
from ziggurat.serving.tables.kernels import kernels

Ints = npt.NDArray[np.int64]
WAYS = 8
ENTRY_BYTES = 12
INDEX_BYTES = 4
INDEXED_WIDTH = 256
"""Bytes of a row from which on an index is worth its memory."""


class RowBytesCache:
    """Keeps rows of a table.

    Args:
        bytes_: memory for rows, ids and index.
        width: bytes of a row.
        rows: rows of the table.

    Raises:
        EnvironmentMismatch: there is not so much memory.
    """

    def __init__(self, bytes_: int, width: int, rows: int) -> None:
        self._library, self.width = kernels(), width
        self.indexed = width >= INDEXED_WIDTH and INDEX_BYTES * rows <= bytes_ // 8
        space = bytes_ - (INDEX_BYTES * rows if self.indexed else 0)
        self.capacity = WAYS * max(1, min(space // (width + ENTRY_BYTES), 2 * rows) // WAYS)
        self._cache = self._library.zs_cache_open(self.capacity // WAYS, width, rows if self.indexed else 0)
        if not self._cache:
            raise EnvironmentMismatch(
                f"a cache of {bytes_:,} bytes: there is not so much memory", "give less with --memory"
            )

    def close(self) -> None:
        """Frees the memory."""
        cache, self._cache = self._cache, None
        if cache:
            self._library.zs_cache_close(cache)

    def read(self, ids_L: Ints, out_LW: Bytes) -> Ints:
        """Copies the rows that are there; returns the places of the others in ``ids_L``, ascending."""
        missing = np.empty(len(ids_L), np.int64)
        count: int = self._library.zs_cache_read(
            self._cache, len(ids_L), ids_L.ctypes.data, out_LW.ctypes.data, missing.ctypes.data
        )
        return missing[:count]

    def put(self, ids_L: Ints, rows_LW: Bytes) -> None:
        """Keeps rows; both arrays are contiguous."""
        self._library.zs_cache_put(self._cache, len(ids_L), ids_L.ctypes.data, rows_LW.ctypes.data)

    def drop(self, ids_L: Ints) -> None:
        """Forgets rows."""
        self._library.zs_cache_drop(self._cache, len(ids_L), ids_L.ctypes.data)

    @property
    def counts(self) -> tuple[int, int]:
        """How many rows were found, and how many were not, so far."""
        found = np.zeros(2, np.int64)
        self._library.zs_cache_counts(self._cache, found.ctypes.data)
        return int(found[0]), int(found[1])
