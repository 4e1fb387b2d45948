"""Where the rows of a table are while they are served: in memory, or on disk behind a cache."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Bytes, Precision
from ziggurat.serving.tables.kernels import Place
from ziggurat.serving.tables.row_cache import RowBytesCache
from ziggurat.storage.async_io import IOJob

Ints = npt.NDArray[np.int64]
_ANY = 1 << 62


class MemoryTable:
    """A table whose file is mapped into memory, which the processes of a host share.

    Args:
        path: its file.
        entry: the table.
        precision: how its rows are stored.
    """

    def __init__(self, path: Path, entry: TableEntry, precision: Precision) -> None:
        layout = entry.layout(precision)
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), layout.bytes, prot=mmap.PROT_READ)
        self._mapped = np.frombuffer(self._map, np.uint8)
        self.place = Place.of(
            self._mapped.ctypes.data, layout.per_block, layout.stride, layout.width, entry.dim, precision
        )

    def close(self) -> None:
        """Does nothing: the map is released with the last look-up that uses it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of a look-up that are not in the cache.

    Attributes:
        ids: the ids of the look-up (L,).
        rows: their rows (L, W), of which those of ``missing`` are to be filled.
        missing: places in ``ids``.
        blocks: the numbers of the groups of blocks that hold them, ascending and distinct.
        block_of: for each of ``missing``, the place in ``blocks``.
    """

    ids: Ints
    rows: Bytes
    missing: Ints
    blocks: Ints
    block_of: Ints


class DiskTable:
    """A table on disk, read past the page cache, with a cache of its rows. Threads may share it.

    Args:
        path: its file.
        entry: the table.
        precision: how its rows are stored.
        cache_bytes: memory for the cache.
    """

    def __init__(self, path: Path, entry: TableEntry, precision: Precision, cache_bytes: int) -> None:
        self.layout, self.entry, self.path = entry.layout(precision), entry, path
        self._precision: Precision = precision
        self.cache = RowBytesCache(cache_bytes, self.layout.width, entry.rows)
        self.direct = True
        try:
            self.file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.file, self.direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), False

    def close(self) -> None:
        """Closes the file and frees the cache."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)
            self.cache.close()

    def want(self, ids_L: Ints) -> Wanted:
        """Copies rows from the cache, and finds out which blocks hold the others."""
        rows_LW = np.empty((len(ids_L), self.layout.width), np.uint8)
        missing = self.cache.read(ids_L, rows_LW)
        blocks, block_of = np.unique(ids_L[missing] // self.layout.per_block, return_inverse=True)
        return Wanted(ids_L, rows_LW, missing, blocks, block_of)

    def job(self, blocks: Ints, memory: Bytes) -> IOJob:
        """Returns the reads of some groups of blocks into memory (blocks, stride)."""
        return IOJob(self.file, blocks * self.layout.stride, memory)

    def fill(self, wanted: Wanted, memory: Bytes) -> Place:
        """Takes the missing rows out of the blocks that were read, keeps them, and returns the place of all rows."""
        if len(wanted.missing):
            ids = wanted.ids[wanted.missing]
            at = ids % self.layout.per_block
            groups = memory[:, : self.layout.per_block * self.layout.width]
            groups = groups.reshape(len(memory), self.layout.per_block, self.layout.width)
            rows = np.ascontiguousarray(groups[wanted.block_of, at])
            wanted.rows[wanted.missing] = rows
            self.cache.put(np.ascontiguousarray(ids), rows)
        return Place.of(wanted.rows.ctypes.data, _ANY, 0, self.layout.width, self.entry.dim, self._precision)
