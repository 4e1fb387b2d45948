"""Rows in a file that is read and written past the page cache.

A row of W numbers is a record of 4·W + 8 bytes: the numbers, little-endian, and a checksum of them and of the row's id.
Records lie at a fixed stride in blocks, which are as many sectors as a record needs. By default a block holds one
record, so that a row is written without reading its neighbours; packed, a sector holds as many as it can: less disk,
and a read before most writes.

The file belongs to one process and has no name: it is gone with the process, however that ends, and what matters is in
checkpoints. So it begins without a row, two trainings cannot meet in one, and it needs no recovery. A record whose
checksum does not fit is an error that names folder, table and row.

Shape legend: U distinct rows, W float32 numbers of a row, N blocks, B bytes of a block, K records of a block.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes
from ziggurat.core.hashing import hash_integers
from ziggurat.storage.row_store import Floats, Initial, Ints, RowStore
from ziggurat.storage.transfers import TransferError, Transfers

CHECKSUM = 8
SECTORS = (512, 4096)
"""That devices want offsets, sizes and memory to be multiples of, tried in this order."""
AGAIN = "run the command again: it goes on from the last checkpoint"
CHUNK = 16 * 2**20
"""Bytes of blocks that are moved together at most."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Where records lie.

    Attributes:
        width: W.
        sector: bytes.
        packed: whether a sector holds more than one record, where that is possible.
    """

    width: int
    sector: int
    packed: bool

    @property
    def record(self) -> int:
        """Bytes of a row and its checksum."""
        return 4 * self.width + CHECKSUM

    @property
    def per_block(self) -> int:
        """K."""
        return max(1, self.sector // self.record) if self.packed else 1

    @property
    def block(self) -> int:
        """B."""
        return -(-self.record // self.sector) * self.sector

    def file_bytes(self, rows: int) -> int:
        """Of a file of so many rows."""
        return -(-rows // self.per_block) * self.block


class FileRows(RowStore):
    """See the module.

    Args:
        folder: that the file lies in; made where there is none.
        table: whose rows these are, for messages.
        rows, width: of the shard.
        initial: makes rows that were never written.
        transfers: how blocks move.
        packed: see the module.
        direct: whether the page cache is passed by; it is not on file systems that cannot, and :attr:`direct` says so.

    Raises:
        DataError: there is no room, or no permission.
    """

    def __init__(
        self,
        folder: Path,
        table: str,
        rows: int,
        width: int,
        initial: Initial,
        transfers: Transfers,
        *,
        packed: bool = False,
        direct: bool = True,
    ) -> None:
        super().__init__(rows, width, initial)
        self.folder, self.table = folder, table
        self._transfers = transfers
        with explained_writes(folder):
            self._file, self.direct, sector = _unnamed(folder, direct)
            self._closed = weakref.finalize(self, os.close, self._file)
            self.shape = Shape(width, sector, packed)
            self._reserve()
        self._multipliers_W = hash_integers(np.arange(2 * width), 1)[:width] | np.uint64(1)
        self._room = memoryview(b"")

    def _read(self, ids_U: Ints) -> Floats:
        """Block by block.

        Raises:
            DataError: the device gives an error, the file is too short, or a record is damaged.
        """
        found = np.empty((len(ids_U), self.width), np.float32)
        for part in self._parts(ids_U):
            ids = ids_U[part]
            blocks_N, place_U = _distinct(ids // self.shape.per_block)
            memory_NB = self._blocks(len(blocks_N))
            self._move("read", blocks_N, memory_NB)
            found[part] = self._unpacked(ids, self._records(memory_NB)[place_U, ids % self.shape.per_block])
        return found

    def _write(self, ids_U: Ints, rows_UW: Floats) -> None:
        """Block by block, with what else is in them.

        Raises:
            DataError: the disk is full, or gives an error.
        """
        for part in self._parts(ids_U):
            ids = ids_U[part]
            blocks_N, place_U = _distinct(ids // self.shape.per_block)
            memory_NB = self._blocks(len(blocks_N))
            self._neighbours(ids, blocks_N, place_U, memory_NB)
            records = np.zeros((len(ids), self.shape.record), np.uint8)
            numbers = np.ascontiguousarray(rows_UW[part], np.float32)
            records[:, CHECKSUM:] = numbers.view(np.uint8).reshape(len(ids), -1)
            records[:, :CHECKSUM] = self._checksums(ids, numbers).view(np.uint8).reshape(-1, CHECKSUM)
            self._records(memory_NB)[place_U, ids % self.shape.per_block] = records
            self._move("write", blocks_N, memory_NB)

    def close(self) -> None:
        """Give the file back: nobody else can use it."""
        self._closed()
        self._file = -1

    def _reserve(self) -> None:
        """Room for all rows."""
        size = self.shape.file_bytes(self.rows)
        try:
            _allocate(self._file, size)
        except OSError as error:
            self.close()
            if error.errno not in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}:
                raise
            raise _no_room(self.folder, [(self.table, size)], self.shape.packed) from error

    def _parts(self, ids_U: Ints) -> list[slice]:
        """Rows whose blocks go through memory together; those of one block are never apart."""
        blocks = ids_U // self.shape.per_block
        number = np.cumsum(np.append(0, np.diff(blocks) != 0)) // max(1, CHUNK // self.shape.block)
        ends = [0, *(np.flatnonzero(np.diff(number)) + 1).tolist(), len(ids_U)]
        return [slice(begin, end) for begin, end in pairwise(ends) if end > begin]

    def _blocks(self, count: int) -> npt.NDArray[np.uint8]:
        """Aligned memory for so many blocks, (N, B); the same again in the next call."""
        size = count * self.shape.block
        if len(self._room) < size:
            self._room = memoryview(mmap.mmap(-1, max(size, min(2 * size, CHUNK))))  # pages: aligned
        return np.frombuffer(self._room, np.uint8, size).reshape(count, self.shape.block)

    def _records(self, memory_NB: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """(N, K, bytes of a record), a view."""
        count, used = len(memory_NB), self.shape.per_block * self.shape.record
        return memory_NB[:, :used].reshape(count, self.shape.per_block, self.shape.record)

    def _neighbours(self, ids: Ints, blocks_N: Ints, place_U: Ints, memory_NB: npt.NDArray[np.uint8]) -> None:
        """Read the blocks that have records of other rows; the others are zero."""
        memory_NB[:] = 0
        per = self.shape.per_block
        if per == 1:
            return
        every_NK = blocks_N[:, None] * per + np.arange(per)
        other_NK = self._written.of(np.minimum(every_NK, self.rows - 1).reshape(-1)).reshape(-1, per)
        other_NK &= every_NK < self.rows
        other_NK[place_U, ids % per] = False
        needed = np.flatnonzero(other_NK.any(1))
        if len(needed):
            there = np.frombuffer(mmap.mmap(-1, len(needed) * self.shape.block), np.uint8)
            there = there.reshape(len(needed), self.shape.block)
            self._move("read", blocks_N[needed], there)
            memory_NB[needed] = there

    def _move(self, what: str, blocks_N: Ints, memory_NB: npt.NDArray[np.uint8]) -> None:
        at_N = blocks_N * self.shape.block
        reading = what == "read"
        try:
            requests = (self._transfers.read if reading else self._transfers.write)(self._file, at_N, memory_NB)
        except TransferError as error:
            first = error.offset // self.shape.block * self.shape.per_block
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                mend = f"free some space, then {AGAIN}"
            else:
                mend = f"look at the disk (dmesg, smartctl), then {AGAIN}"
            raise DataError(
                f"{self.folder}: table {self.table!r}: cannot {what} the rows from {first:,} on: {error.strerror}", mend
            ) from error
        if reading:
            self.traffic.reads += requests
            self.traffic.read_bytes += memory_NB.nbytes
        else:
            self.traffic.writes += requests
            self.traffic.written_bytes += memory_NB.nbytes

    def _unpacked(self, ids_U: Ints, records: npt.NDArray[np.uint8]) -> Floats:
        numbers = np.ascontiguousarray(records[:, CHECKSUM:]).view("<f4").astype(np.float32, copy=False)
        kept = np.ascontiguousarray(records[:, :CHECKSUM]).view("<u8").reshape(-1)
        damaged = np.flatnonzero(kept != self._checksums(ids_U, numbers))
        if len(damaged):
            raise DataError(
                f"{self.folder}: table {self.table!r}: row {int(ids_U[damaged[0]]):,} is not what was written there"
                + (f", nor are {len(damaged) - 1:,} others" if len(damaged) > 1 else ""),
                f"see who else writes there, look at the disk (dmesg, smartctl), then {AGAIN}",
            )
        return numbers

    def _checksums(self, ids_U: Ints, rows_UW: Floats) -> npt.NDArray[np.uint64]:
        """A sum of the numbers' bits, each times an odd number of its own, mixed with the row's id."""
        with np.errstate(over="ignore"):
            words = rows_UW.view(np.uint32).astype(np.uint64) + np.uint64(1)
            return (words * self._multipliers_W).sum(1, dtype=np.uint64) ^ hash_integers(ids_U)


def check_room(folder: Path, tables: Sequence[tuple[str, int, int]], *, packed: bool = False) -> None:
    """Whether a disk has room for the rows of all these tables, before the first of their files is made.

    Args:
        folder: for the files.
        tables: name, rows and numbers of a row of each.
        packed: see the module.

    Raises:
        DataError: it has not, or there is no permission.
    """
    with explained_writes(folder):
        file, _, sector = _unnamed(folder, direct=True)
        os.close(file)
    sizes = [(name, Shape(width, sector, packed).file_bytes(rows)) for name, rows, width in tables]
    if sum(size for _, size in sizes) > _free(folder):
        raise _no_room(folder, sizes, packed)


def _no_room(folder: Path, sizes: Sequence[tuple[str, int]], packed: bool) -> DataError:
    name, largest = max(sizes, key=lambda each: each[1])
    whose = f"table {name!r}"
    if len(sizes) > 1:
        whose = f"{len(sizes)} tables, of which {name!r} has the largest file ({largest:,} bytes),"
    smaller = "" if packed else "pack several rows into a sector (planning.beyond_memory.packed: true), "
    return DataError(
        f"{folder}: the rows of {whose} need {sum(size for _, size in sizes):,} bytes on disk, and "
        f"{_free(folder):,} are free",
        f"{smaller}free some space, or name a folder on another disk: planning.beyond_memory.folder",
    )


def _free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _allocate(file: int, size: int) -> None:
    """Have blocks for so many bytes; where a file system cannot promise them, the file is as long and has holes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while libc.fallocate64(file, 0, 0, size):
        problem = ctypes.get_errno()
        if problem in {errno.EOPNOTSUPP, errno.ENOSYS}:
            os.ftruncate(file, size)
            return
        if problem != errno.EINTR:
            raise OSError(problem, os.strerror(problem))


def _distinct(blocks_U: Ints) -> tuple[Ints, Ints]:
    """Of ascending numbers, the distinct ones, and where each is among them."""
    new = np.append(True, np.diff(blocks_U) != 0)
    return blocks_U[new], np.cumsum(new) - 1


def _unnamed(folder: Path, direct: bool) -> tuple[int, bool, int]:
    """A new file in ``folder`` without a name: its descriptor, whether it passes by the page cache, and of how many
    bytes it wants multiples."""
    folder.mkdir(parents=True, exist_ok=True)
    cached, name = tempfile.mkstemp(prefix=".rows-", dir=folder)
    path = Path(name)
    try:
        found = _direct(path) if direct else None
    finally:
        path.unlink()
    if found is None:
        return cached, False, SECTORS[0]
    os.close(cached)
    return found[0], True, found[1]


def _direct(path: Path) -> tuple[int, int] | None:
    """A descriptor that passes by the page cache, and in multiples of how many bytes; None where there is none."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None
    room = mmap.mmap(-1, SECTORS[-1])
    for sector in SECTORS:
        try:
            os.pwritev(file, [memoryview(room)[:sector]], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                os.close(file)
                raise
        else:
            return file, sector
    os.close(file)
    return None
