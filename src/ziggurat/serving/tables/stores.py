"""Where the rows of a table are while they are served: in memory, or on disk behind a cache."""

from __future__ import annotations

import errno
import mmap
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from ziggurat.core.digests import FileChecksum
from ziggurat.core.errors import DataError
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Bytes, Precision, decode, row_bytes
from ziggurat.serving.tables.kernels import Place
from ziggurat.serving.tables.pooled_cache import PooledCache
from ziggurat.serving.tables.row_cache import RowBytesCache
from ziggurat.serving.tables.shared_memory import SharedMemory
from ziggurat.storage.async_io import IOJob
from ziggurat.storage.row_reads import RowReads

Ints = npt.NDArray[np.int64]
ANY = 1 << 62
"""Rows of a block where all rows stand one behind the other."""
_CHUNK = 4 << 20


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


class LoadedTable:
    """A table whose rows were copied into memory that the processes of a server share.

    Args:
        rows: its rows, one behind the other.
        entry: the table.
        precision: how they are stored there.
    """

    def __init__(self, rows: SharedMemory, entry: TableEntry, precision: Precision) -> None:
        self._rows = rows
        self.place = Place.of(rows.address, ANY, 0, row_bytes(entry.dim, precision), entry.dim, precision)

    def close(self) -> None:
        """Does nothing: the memory is released with the last process that has it."""


def load_rows(
    path: Path, entry: TableEntry, precision: Precision, stored: Precision, checksum: FileChecksum
) -> SharedMemory:
    """Copies the rows of a table's file into memory, past the page cache, one behind the other, and checks the file.

    Args:
        path: the file.
        entry: the table.
        precision: how its rows are stored in the file.
        stored: how they shall be stored in memory: the same, or ``fp32``.
        checksum: that of the file.

    Raises:
        DataError: the file cannot be read, or is another than was written.
        EnvironmentMismatch: there is not so much memory.
    """
    layout, width = entry.layout(precision), row_bytes(entry.dim, stored)
    memory = SharedMemory(entry.rows * width, f"the table {entry.name!r}")
    rows_UW = memory.view.reshape(entry.rows, width)
    groups = max(1, _CHUNK // layout.stride)
    buffer = np.frombuffer(mmap.mmap(-1, groups * layout.stride), np.uint8)
    file, _ = open_direct(path)
    read = xxhash.xxh3_128()
    try:
        for first in range(0, -(-entry.rows // layout.per_block), groups):
            size = min(groups * layout.stride, layout.bytes - first * layout.stride)
            _read_all(file, buffer[:size], first * layout.stride, path)
            read.update(buffer[:size].data)
            found = buffer[:size].reshape(-1, layout.stride)[:, : layout.per_block * layout.width]
            start = first * layout.per_block
            some = found.reshape(-1, layout.width)[: entry.rows - start]
            if stored != precision:
                some = decode(some, entry.dim, precision).view(np.uint8)
            rows_UW[start : start + len(some)] = some
    finally:
        os.close(file)
    checksum.check_digest(read.hexdigest(), path, DAMAGED)
    return memory


def _read_all(file: int, into: Bytes, offset: int, path: Path) -> None:
    done = 0
    while done < len(into):
        try:
            count = os.preadv(file, [into[done:].data], offset + done)
        except OSError as error:
            raise unreadable(path, offset + done, error.strerror or "") from error
        if not count:
            raise unreadable(path, offset + done, "the file ends before")
        done += count


def unreadable(path: Path, offset: int, reason: str) -> DataError:
    """Returns the error about a table's file that cannot be read."""
    return DataError(
        f"{path}: cannot be read at byte {offset:,}: {reason}",
        "check the disk; export the model again if the file is damaged",
    )


def open_direct(path: Path) -> tuple[int, bool]:
    """Opens a file past the page cache where that is possible; returns its descriptor, and whether it was."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC | os.O_NOFOLLOW), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), False


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of a look-up that are not in the cache.

    Attributes:
        ids: the ids of the look-up (L,).
        rows: their rows (L, W), of which those of ``missing`` are to be read.
        missing: places in ``ids``, by rising id.
    """

    ids: Ints
    rows: Bytes
    missing: Ints


class DiskTable:
    """A table on disk, read past the page cache, with a cache of its rows. Threads may share it.

    Args:
        path: its file.
        entry: the table.
        precision: how its rows are stored.
        cache: the cache of its rows.
        pooled: the cache of what its long bags become, if any.
        generation: the generation of the caches that its rows belong to.

    Attributes:
        direct: whether the file is read past the page cache, which some file systems refuse.
    """

    def __init__(
        self,
        path: Path,
        entry: TableEntry,
        precision: Precision,
        cache: RowBytesCache,
        pooled: PooledCache | None = None,
        generation: int = 1,
    ) -> None:
        self.layout, self.entry, self.path = entry.layout(precision), entry, path
        self._precision: Precision = precision
        self.cache, self.pooled, self.generation = cache, pooled, generation
        self.file, self.direct = open_direct(path)

    def succeeded(self, path: Path, generation: int, changed: Ints | None = None) -> DiskTable:
        """Returns the same table with other rows, which shares the caches.

        From now on this table, which look-ups that have begun may still use, reads the disk for each row; no look-up
        gets a row of both. Each process of a server calls it, with the same arguments.

        Args:
            path: the file of the new rows.
            generation: a number that grows with each such step, and is the same in all processes.
            changed: the ids of the rows that are others; None: any may be.
        """
        self.cache.advance(generation, changed)
        if self.pooled is not None:
            self.pooled.advance(generation)
        return DiskTable(path, self.entry, self._precision, self.cache, self.pooled, generation)

    @property
    def precision(self) -> Precision:
        """How its rows are stored."""
        return self._precision

    def close(self) -> None:
        """Closes the file. The caches are released with the last table that has them."""
        file, self.file = self.file, -1
        if file >= 0:
            os.close(file)

    def __del__(self) -> None:
        if getattr(self, "file", -1) >= 0:
            self.close()

    def want(self, ids_L: Ints) -> Wanted:
        """Copies rows from the cache, and finds out which are to be read."""
        rows_LW = np.empty((len(ids_L), self.layout.width), np.uint8)
        missing = self.cache.read(ids_L, rows_LW, self.generation)
        return Wanted(ids_L, rows_LW, missing[np.argsort(ids_L[missing])])

    def job(self, blocks: Ints, memory: Bytes) -> IOJob:
        """Returns the reads of some groups of blocks into memory (blocks, stride)."""
        return IOJob(self.file, blocks * self.layout.stride, memory)

    def reads(self, wanted: Wanted, most: int) -> RowReads:
        """Returns the reads of the missing rows, of which so many may be in flight."""
        layout = self.layout
        return RowReads(self.file, wanted.ids, wanted.missing, wanted.rows, layout.per_block, layout.stride, most)

    def keep(self, wanted: Wanted) -> Place:
        """Keeps the rows that were read, and returns the place of all."""
        if len(wanted.missing):
            self.cache.put(wanted.ids[wanted.missing], wanted.rows[wanted.missing], self.generation)
        return Place.of(wanted.rows.ctypes.data, ANY, 0, self.layout.width, self.entry.dim, self._precision)
