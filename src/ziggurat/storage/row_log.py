"""A row store in a log-structured file that bypasses the page cache.

Rows that are evicted from memory are appended in long sequential writes, wherever the file has free space. On flash,
many small writes cost several times as much as the same number of reads; here a thousand rows take a few requests. An
index in memory, four bytes per row, says which record is a row's current one. When the file is full, the segments with
the fewest live records are read, and those records are written again together with the next rows (Rosenblum and
Ousterhout 1992, "The design and implementation of a log-structured file system"). A record is live until its row is
written again or is changed in memory; at most half of the file's records are live.

The record of a row of W numbers has 4·W + 8 bytes: a checksum of numbers and id, the id, and the numbers. A block holds
as many whole records as fit. Its size is the smallest number of sectors that records fill to at least three quarters. A
row is read by reading its block.

The file is anonymous and belongs to one process. It disappears with the process, however that ends; what must last is
in checkpoints. So a log starts empty, two training runs cannot share a file, and no recovery is needed. A record whose
contents are not what was written raises an error that names folder, table and row.

Shape legend: R rows, U distinct rows, W float32 numbers of a row, N blocks, B bytes of a block, K records of a block, S
segments.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes
from ziggurat.core.hashing import hash_integers
from ziggurat.storage.anonymous_files import allocate, anonymous_file, free_bytes
from ziggurat.storage.async_io import IOJob, TransferError, TransferThread
from ziggurat.storage.row_store import Floats, Initial, Ints, RowStore, StartedTransfer

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

HEADER_WORDS = 2
"""Words of 4 bytes before a row's numbers: checksum and id."""
MIN_BLOCK_FILL = 0.75
"""Minimum share of a block that its records fill."""
SPACE_FACTOR = 2.0
"""Blocks of the file per block that all rows would fill."""
LOG_BYTES_PER_ROW_BYTE = 1.05 * SPACE_FACTOR / MIN_BLOCK_FILL
"""Upper bound of the file's size per byte of rows, except for narrow rows."""
MAX_SEGMENT_BYTES = 2**20
MIN_SEGMENTS = 32
"""Minimum number of segments, if there are enough blocks."""
NO_RECORD = np.uint32(2**32 - 1)
RESUME_HINT = "run the command again: it resumes from the last checkpoint"


@dataclass(frozen=True)
class LogShape:
    """The layout of the file.

    Attributes:
        rows: number of rows.
        width: W.
        sector: the device's sector size, bytes.
    """

    rows: int
    width: int
    sector: int

    @property
    def record(self) -> int:
        """Words of a record."""
        return HEADER_WORDS + self.width

    @cached_property
    def block(self) -> int:
        """Bytes of a block, B."""
        size = -(-4 * self.record // self.sector) * self.sector
        while size // (4 * self.record) * 4 * self.record < MIN_BLOCK_FILL * size:
            size += self.sector
        return size

    @cached_property
    def per_block(self) -> int:
        """Records of a block, K."""
        return self.block // (4 * self.record)

    @cached_property
    def blocks(self) -> int:
        """Blocks of a segment."""
        return max(1, min(MAX_SEGMENT_BYTES // self.block, self._min_blocks // MIN_SEGMENTS))

    @cached_property
    def segments(self) -> int:
        """Number of segments, S."""
        return -(-self._min_blocks // self.blocks)

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.segments * self.blocks * self.block

    @property
    def _min_blocks(self) -> int:
        """Minimum number of blocks; two are added because a call may leave the end of its last block empty."""
        return int(SPACE_FACTOR * -(-self.rows // self.per_block)) + 2


class LogRows(RowStore):
    """A row store in a log-structured anonymous file; see the module's docstring.

    Args:
        folder: folder of the file; created if it does not exist.
        table: name of the rows' table, for messages.
        rows: number of rows of the shard.
        width: W.
        initial: makes rows that were never written.
        transfers: transfers blocks.
        first_row: number of the shard's first row in its table, for messages.
        direct: whether to bypass the page cache, if the file system can.

    Attributes:
        direct: whether the page cache is bypassed.

    Raises:
        DataError: there is not enough space, or no permission.
    """

    def __init__(
        self,
        folder: Path,
        table: str,
        rows: int,
        width: int,
        initial: Initial,
        transfers: TransferThread,
        *,
        first_row: int = 0,
        direct: bool = True,
    ) -> None:
        super().__init__(rows, width, initial, transfers)
        self._transfers = transfers
        self.folder, self.table, self._first_row = folder, table, first_row
        with explained_writes(folder):
            self._file, self.direct, sector = anonymous_file(folder, direct)
            self._close_file = weakref.finalize(self, os.close, self._file)
            self._close_file.atexit = False  # a thread may still be writing; the process's end removes the file anyway
            self.shape = LogShape(rows, width, sector)
            self._reserve()
        self.read_bytes, self.write_bytes = self.shape.block, -(-self.shape.block // self.shape.per_block)
        assert self.shape.segments * self.shape.blocks * self.shape.per_block < int(NO_RECORD), rows
        self._multipliers_W = hash_integers(np.arange(2 * width), 1)[:width] | np.uint64(1)
        self._record_of_R = np.full(rows, NO_RECORD, np.uint32)
        """Number of each row's record, counted from the file's beginning."""
        self._live_S = np.zeros(self.shape.segments, np.int64)
        """Number of live records of each segment."""
        self._free_segments = list(range(self.shape.segments))[::-1]
        self._open_blocks = (0, 0)
        """Free blocks of the segment that is being filled: the next one, and the end (exclusive)."""

    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        return self._record_of_R[ids_U] != NO_RECORD

    def forget(self, ids_U: Ints) -> None:
        numbers_U = self._record_of_R[ids_U]
        segments = self._segments(numbers_U[numbers_U != NO_RECORD])
        np.subtract.at(self._live_S, segments, 1)
        self._record_of_R[ids_U] = NO_RECORD

    def begin_read(self, ids_U: Ints) -> StartedTransfer[Floats]:
        """Reads the blocks of these rows. ``finish`` raises a DataError if a record is damaged."""
        numbers_U = self._record_of_R[ids_U]
        blocks_N, block_U = np.unique(numbers_U // self.shape.per_block, return_inverse=True)
        buffer, memory_NB = self._take_memory(len(blocks_N))

        def finish() -> Floats:
            records = self._records(memory_NB)[block_U, numbers_U % self.shape.per_block]
            self._transfers.buffers.give_back(buffer)
            self._check(ids_U, records)
            return records[:, HEADER_WORDS:].view(np.float32)

        return StartedTransfer(finish, [IOJob(self._file, blocks_N.astype(np.int64) * self.shape.block, memory_NB)])

    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> StartedTransfer[None]:
        """Appends rows to the log, together with live records of segments that are freed."""
        self.forget(ids_U)
        values = np.ascontiguousarray(rows_UW, np.float32)
        words = [self._checksums(ids_U, values)[:, None], ids_U.astype(np.uint32)[:, None], values.view(np.uint32)]
        records = np.concatenate(words, axis=1)
        if self._needs_cleaning(len(records)):
            records = np.concatenate([records, self._clean(len(records))])
        per_block, count = self.shape.per_block, len(records)
        blocks_N = self._allocate_blocks(-(-count // per_block))
        buffer, memory_NB = self._take_memory(len(blocks_N))
        records_NK = self._records(memory_NB)
        full = count // per_block
        records_NK[:full] = records[: full * per_block].reshape(full, per_block, self.shape.record)
        records_NK[full:, : count - full * per_block] = records[full * per_block :]
        records_NK[full:, count - full * per_block :] = 0

        record_numbers = (blocks_N[:, None] * per_block + np.arange(per_block)).reshape(-1)[:count]
        self._record_of_R[records[:, 1]] = record_numbers
        np.add.at(self._live_S, self._segments(record_numbers), 1)
        job = IOJob(self._file, blocks_N * self.shape.block, memory_NB)
        return StartedTransfer(lambda: self._transfers.buffers.give_back(buffer), [job])

    def close(self) -> None:
        """Closes the file, and thereby deletes it."""
        self._close_file()
        self._file = -1

    def transfer_problem(self, error: TransferError, what: str) -> DataError:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = f"free some space, then {RESUME_HINT}"
        else:
            hint = f"check the disk (dmesg, smartctl), then {RESUME_HINT}"
        return DataError(
            f"{self.folder}: table {self.table!r}: cannot {what} its rows, at byte {error.offset:,} of their file: "
            f"{error.strerror}",
            hint,
        )

    def _needs_cleaning(self, records: int) -> bool:
        """Returns whether there are too few free blocks for ``records`` more records."""
        return -(-records // self.shape.per_block) > self._free_blocks

    @property
    def _free_blocks(self) -> int:
        return len(self._free_segments) * self.shape.blocks + self._open_blocks[1] - self._open_blocks[0]

    def _clean(self, records: int) -> Words:
        """Frees segments and returns their live records, which no longer have a place in the file.

        It frees as many segments as are needed to append their live records and ``records`` more.

        Raises:
            DataError: the device reports an error, or a record is damaged.
        """
        shape, open_segment = self.shape, self._open_blocks[0] // self.shape.blocks
        full = np.ones(shape.segments, np.bool_)
        full[self._free_segments] = False
        if self._open_blocks[0] < self._open_blocks[1]:
            full[open_segment] = False
        order = np.flatnonzero(full)
        order = order[np.argsort(self._live_S[order], kind="stable")]
        needed = -(-(np.cumsum(self._live_S[order]) + records) // shape.per_block)
        available = self._free_blocks + shape.blocks * np.arange(1, len(order) + 1)
        enough = np.flatnonzero(available >= needed + shape.blocks)  # and one segment for the following calls
        assert len(enough), "the file has space for twice the rows"
        chosen = np.sort(order[: int(enough[0]) + 1])
        live = self._read_live(chosen[self._live_S[chosen] > 0])
        self._free_segments += chosen[::-1].tolist()
        self._record_of_R[live[:, 1]] = NO_RECORD
        self._live_S[chosen] = 0
        self.traffic.rows_relocated += len(live)
        return live

    def _read_live(self, segments: Ints) -> Words:
        """Reads these segments and returns their live records.

        Raises:
            DataError: the device reports an error, or a record is damaged.
        """
        shape = self.shape
        blocks_N = (segments[:, None] * shape.blocks + np.arange(shape.blocks)).reshape(-1)
        if not len(blocks_N):
            return np.zeros((0, shape.record), np.uint32)
        buffer, memory_NB = self._take_memory(len(blocks_N))
        job = IOJob(self._file, blocks_N * shape.block, memory_NB)
        try:
            self.traffic.reads += self._transfers.read([job])[0]
        except TransferError as error:
            raise self.transfer_problem(error, "read") from error
        self.traffic.read_bytes += memory_NB.nbytes
        records = self._records(memory_NB).reshape(-1, shape.record)
        numbers = (blocks_N[:, None] * shape.per_block + np.arange(shape.per_block)).reshape(-1)
        is_live = (self._record_of_R[np.minimum(records[:, 1], self.rows - 1)] == numbers) & (records[:, 1] < self.rows)
        live = records[is_live]
        self._transfers.buffers.give_back(buffer)
        if len(live) != self._live_S[segments].sum():
            expected = np.flatnonzero(np.isin(self._segments(self._record_of_R), segments))
            raise self._damaged(np.setdiff1d(expected, live[:, 1]))
        self._check(live[:, 1].astype(np.int64), live)
        return live

    def _allocate_blocks(self, count: int) -> Ints:
        """Takes ``count`` free blocks; there must be as many."""
        allocated, missing = [np.zeros(0, np.int64)], count
        while missing:
            if self._open_blocks[0] == self._open_blocks[1]:
                first = self._free_segments.pop() * self.shape.blocks
                self._open_blocks = (first, first + self.shape.blocks)
            first, end = self._open_blocks
            taken = min(missing, end - first)
            allocated.append(np.arange(first, first + taken))
            self._open_blocks = (first + taken, end)
            missing -= taken
        return np.concatenate(allocated)

    def _segments(self, record_numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        """Returns the segment of each record."""
        return record_numbers // (self.shape.per_block * self.shape.blocks)

    def _take_memory(self, count: int) -> tuple[Bytes, Bytes]:
        """Returns a buffer, to be given back, and a view of it as ``count`` blocks (N, B)."""
        size = count * self.shape.block
        buffer = self._transfers.buffers.take(size)
        return buffer, buffer[:size].reshape(count, self.shape.block)

    def _records(self, memory_NB: Bytes) -> Words:
        """Returns the blocks as records, a view (N, K, words of a record)."""
        used = self.shape.per_block * self.shape.record
        words = memory_NB.view(np.uint32)[:, :used]
        return words.reshape(len(memory_NB), self.shape.per_block, self.shape.record)

    def _check(self, ids_U: Ints, records: Words) -> None:
        """Raises a DataError that names the first damaged row, if any."""
        sums = self._checksums(ids_U, np.ascontiguousarray(records[:, HEADER_WORDS:]).view(np.float32))
        damaged = np.flatnonzero((records[:, 0] != sums) | (records[:, 1] != ids_U))
        if len(damaged):
            raise self._damaged(ids_U[damaged])

    def _damaged(self, ids: Ints) -> DataError:
        return DataError(
            f"{self.folder}: table {self.table!r}: row {self._first_row + int(ids[0]):,} is not what was written there"
            + (f", nor are {len(ids) - 1:,} others" if len(ids) > 1 else ""),
            f"check the disk (dmesg, smartctl) and whether another program writes there, then {RESUME_HINT}",
        )

    def _checksums(self, ids_U: Ints, rows_UW: Floats) -> Words:
        """Returns a 32-bit checksum of each row and its id.

        The bits of each number, as an integer, are multiplied by an odd constant of its column; the sum is mixed with
        the id.
        """
        with np.errstate(over="ignore"):
            words = rows_UW.view(np.uint32).astype(np.uint64) + np.uint64(1)
            mixed = (words * self._multipliers_W).sum(1, dtype=np.uint64) ^ hash_integers(ids_U)
        return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)

    def _reserve(self) -> None:
        """Reserves disk space for all segments."""
        size = self.shape.file_bytes
        try:
            allocate(self._file, size)
        except OSError as error:
            self.close()
            if error.errno not in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}:
                raise
            raise _no_space(self.folder, [(self.table, size)]) from error


def check_disk_space(folder: Path, tables: Sequence[tuple[str, int, int]]) -> None:
    """Checks that a disk has enough space for the rows of all tables, before the first file is created.

    Args:
        folder: folder of the files.
        tables: name, number of rows and numbers of a row (W) of each table.

    Raises:
        DataError: there is not enough space, or no permission.
    """
    with explained_writes(folder):
        file, _, sector = anonymous_file(folder, direct=True)
        os.close(file)
    sizes = [(name, LogShape(rows, width, sector).file_bytes) for name, rows, width in tables]
    if sum(size for _, size in sizes) > free_bytes(folder):
        raise _no_space(folder, sizes)


def _no_space(folder: Path, sizes: Sequence[tuple[str, int]]) -> DataError:
    name, largest = max(sizes, key=lambda each: each[1])
    tables = f"table {name!r}"
    if len(sizes) > 1:
        tables = f"{len(sizes)} tables, of which {name!r} has the largest file ({largest:,} bytes),"
    return DataError(
        f"{folder}: the rows of {tables} need {sum(size for _, size in sizes):,} bytes on disk, and "
        f"{free_bytes(folder):,} are free",
        "free some space, or name a folder on another disk: planning.beyond_memory.folder",
    )
