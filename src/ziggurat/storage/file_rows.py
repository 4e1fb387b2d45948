"""Rows in a file that is read and written past the page cache.

A row of W numbers is a record of 4·W + 8 bytes: the numbers, little-endian, and a checksum of them and of the row's id.
Records lie at a fixed stride in blocks, which are as many sectors as a record needs. By default a block holds one
record, so that a row is written without reading its neighbours; packed, a sector holds as many as it can: less disk,
and a read before most writes.

The file belongs to one training: it begins without a row, and what matters is in checkpoints. So it needs no recovery:
after a power cut, a new one is begun and filled from the last checkpoint. A record whose checksum does not fit is an
error that names file, table and row.

Shape legend: U distinct rows, W float32 numbers of a row, N blocks, B bytes of a block, K records of a block.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.files import explained_writes
from ziggurat.core.hashing import hash_integers
from ziggurat.storage.row_store import Floats, Initial, Ints, RowStore
from ziggurat.storage.transfers import TransferError, Transfers

MAGIC = b"ziggurat rows 1\n"
HEADER = 4096
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
        return HEADER + -(-rows // self.per_block) * self.block


class FileRows(RowStore):
    """See the module.

    Args:
        path: of the file; one that an earlier training left there is replaced.
        table: whose rows these are, for messages.
        rows, width: of the shard.
        initial: makes rows that were never written.
        transfers: how blocks move.
        packed: see the module.
        direct: whether the page cache is passed by; it is not on file systems that cannot, and :attr:`direct` says so.

    Raises:
        RunFolderError: the file is another training's, which runs, or is no file of rows.
        DataError: there is no room, or no permission.
    """

    def __init__(
        self,
        path: Path,
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
        self.path, self.table = path, table
        self._transfers = transfers
        with explained_writes(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._locked = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._take_over()
                self.direct, sector = _sector(path) if direct else (False, SECTORS[0])
                self.shape = Shape(width, sector, packed)
                self._begin({"table": table, "rows": rows, "width": width, "sector": sector, "packed": packed})
                self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if self.direct else 0))
            except BaseException:
                os.close(self._locked)
                raise
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
        """Delete the file: nobody else can use it."""
        if self._locked >= 0:
            self.path.unlink(missing_ok=True)
            os.close(self._file)
            os.close(self._locked)
            self._locked = -1

    def _take_over(self) -> None:
        """The file is this process's from here on, empty."""
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{self.path}: another training keeps its rows in this file",
                "wait for it, or name another folder: planning.beyond_memory.folder",
            ) from None
        there = os.pread(self._locked, len(MAGIC), 0)
        if there and there != MAGIC:
            raise RunFolderError(
                f"{self.path}: is no file of rows, and would be overwritten",
                "move it away, or name another folder: planning.beyond_memory.folder",
            )
        os.ftruncate(self._locked, 0)
        os.pwrite(self._locked, MAGIC, 0)

    def _begin(self, about: dict[str, Any]) -> None:
        """The header, and room for all rows: in this order, for whoever finds what a killed process left."""
        size = self.shape.file_bytes(self.rows)
        os.pwrite(self._locked, (MAGIC + json.dumps(about).encode()).ljust(HEADER, b"\0"), 0)
        os.fsync(self._locked)
        try:
            os.posix_fallocate(self._locked, 0, size)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EFBIG}:
                os.ftruncate(self._locked, 0)
                status = os.statvfs(self.path.parent)
                free = status.f_bavail * status.f_frsize
                self.path.unlink(missing_ok=True)
                smaller = "" if about["packed"] else "pack several rows into a sector (packed: true), "
                raise DataError(
                    f"{self.path}: table {self.table!r} needs {size:,} bytes on disk ({self.rows:,} rows, "
                    f"{self.shape.block} bytes for {self.shape.per_block}), and {free:,} are free",
                    f"{smaller}free some space, or name a folder on another disk: planning.beyond_memory.folder",
                ) from error
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
            os.ftruncate(self._locked, size)

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
        at_N = HEADER + blocks_N * self.shape.block
        reading = what == "read"
        try:
            requests = (self._transfers.read if reading else self._transfers.write)(self._file, at_N, memory_NB)
        except TransferError as error:
            first = (error.offset - HEADER) // self.shape.block * self.shape.per_block
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                mend = f"free some space, then {AGAIN}"
            else:
                mend = f"look at the disk (dmesg, smartctl), then {AGAIN}"
            raise DataError(
                f"{self.path}: table {self.table!r}: cannot {what} the rows from {first:,} on: {error.strerror}", mend
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
                f"{self.path}: table {self.table!r}: row {int(ids_U[damaged[0]]):,} is not what was written there"
                + (f", nor are {len(damaged) - 1:,} others" if len(damaged) > 1 else ""),
                f"see who else writes there, look at the disk (dmesg, smartctl), then {AGAIN}",
            )
        return numbers

    def _checksums(self, ids_U: Ints, rows_UW: Floats) -> npt.NDArray[np.uint64]:
        """A sum of the numbers' bits, each times an odd number of its own, mixed with the row's id."""
        with np.errstate(over="ignore"):
            words = rows_UW.view(np.uint32).astype(np.uint64) + np.uint64(1)
            return (words * self._multipliers_W).sum(1, dtype=np.uint64) ^ hash_integers(ids_U)


def sweep(folder: Path) -> None:
    """Delete the files of rows in ``folder`` that belong to nobody any more, and the folder if nothing is left."""
    for path in sorted(folder.glob("*.rows")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use
            if file.read(len(MAGIC)) == MAGIC:
                path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _distinct(blocks_U: Ints) -> tuple[Ints, Ints]:
    """Of ascending numbers, the distinct ones, and where each is among them."""
    new = np.append(True, np.diff(blocks_U) != 0)
    return blocks_U[new], np.cumsum(new) - 1


def _sector(path: Path) -> tuple[bool, int]:
    """Whether the file system can pass by the page cache, and in multiples of how many bytes."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return False, SECTORS[0]
    try:
        room = mmap.mmap(-1, SECTORS[-1])
        for sector in SECTORS:
            try:
                os.pwritev(file, [memoryview(room)[:sector]], sector)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return True, sector
        return False, SECTORS[0]
    finally:
        os.close(file)
