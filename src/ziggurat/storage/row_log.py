"""Rows in a file that is written as a log, past the page cache.

Rows that leave memory are written one behind the other, in long stretches, wherever there is room: on flash, many small
writes cost several times what as many reads do, and here a thousand rows are a few requests. Which record is a row's is
kept in memory, four bytes a row. Where the file is full, the segments with the fewest records that still count are
read, and these are written again with the next rows (Rosenblum and Ousterhout 1992, "The design and implementation of
a log-structured file system"). Half of the records count at most; those of rows that were changed in memory do not.

A record of a row of W numbers is 4·W + 8 bytes: a checksum of numbers and id, the id, and the numbers. Blocks hold some
records, and are the least number of sectors that these fill to three quarters; a row is read by its block.

The file belongs to one process and has no name: it is gone with the process, however that ends, and what matters is in
checkpoints. So it begins without a row, two trainings cannot meet in one, and it needs no recovery. A record that is
not what was written is an error that names folder, table and row.

Shape legend: U distinct rows, W float32 numbers of a row, N blocks, B bytes of a block, K records of a block, S
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
from ziggurat.storage.anonymous_files import allocate, free_bytes, unnamed_file
from ziggurat.storage.async_io import IOJob, TransferError, TransferThread
from ziggurat.storage.row_store import Floats, Initial, Ints, RowStore, StartedTransfer

Words = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]

HEAD = 2
"""Words of 4 bytes before a row's numbers: checksum and id."""
FULL = 0.75
"""Of a block, at least."""
SPARE = 2.0
"""Times the blocks that all rows take."""
LOG_TIMES = 1.05 * SPARE / FULL
"""Times the bytes of rows that their log takes at most, but for narrow ones."""
SEGMENT = 2**20
"""Bytes, at most."""
SEGMENTS = 32
"""At least, where there are blocks enough."""
NOWHERE = np.uint32(2**32 - 1)
AGAIN = "run the command again: it goes on from the last checkpoint"


@dataclass(frozen=True)
class LogShape:
    """Where records lie.

    Attributes:
        rows: that there are.
        width: W.
        sector: bytes.
    """

    rows: int
    width: int
    sector: int

    @property
    def record(self) -> int:
        """Words of one."""
        return HEAD + self.width

    @cached_property
    def block(self) -> int:
        """B."""
        size = -(-4 * self.record // self.sector) * self.sector
        while size // (4 * self.record) * 4 * self.record < FULL * size:
            size += self.sector
        return size

    @cached_property
    def per_block(self) -> int:
        """K."""
        return self.block // (4 * self.record)

    @cached_property
    def blocks(self) -> int:
        """Of a segment."""
        return max(1, min(SEGMENT // self.block, self._wanted // SEGMENTS))

    @cached_property
    def segments(self) -> int:
        """S."""
        return -(-self._wanted // self.blocks)

    @property
    def file_bytes(self) -> int:
        """Of the file."""
        return self.segments * self.blocks * self.block

    @property
    def _wanted(self) -> int:
        """Blocks; the two that are more are for what a call leaves empty at its end."""
        return int(SPARE * -(-self.rows // self.per_block)) + 2


class LogRows(RowStore):
    """See the module.

    Args:
        folder: that the file lies in; made where there is none.
        table: whose rows these are, for messages.
        rows, width: of the shard.
        initial: makes rows that were never written.
        transfers: how blocks move.
        first: number of the shard's first row in its table, for messages.
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
        transfers: TransferThread,
        *,
        first: int = 0,
        direct: bool = True,
    ) -> None:
        super().__init__(rows, width, initial, transfers)
        self._moving = transfers
        self.folder, self.table, self._first = folder, table, first
        with explained_writes(folder):
            self._file, self.direct, sector = unnamed_file(folder, direct)
            self._closed = weakref.finalize(self, os.close, self._file)
            self._closed.atexit = False  # a thread may be writing, and the file is gone with the process anyway
            self.shape = LogShape(rows, width, sector)
            self._reserve()
        self.read_bytes, self.write_bytes = self.shape.block, -(-self.shape.block // self.shape.per_block)
        assert self.shape.segments * self.shape.blocks * self.shape.per_block < int(NOWHERE), rows
        self._multipliers_W = hash_integers(np.arange(2 * width), 1)[:width] | np.uint64(1)
        self._place_R = np.full(rows, NOWHERE, np.uint32)
        """Which record is a row's, counted from the file's beginning."""
        self._counting_S = np.zeros(self.shape.segments, np.int64)
        """Records that are some row's."""
        self._free = list(range(self.shape.segments))[::-1]
        self._open = (0, 0)
        """Blocks of the segment that is being filled: the next one, and the first behind it."""

    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        return self._place_R[ids_U] != NOWHERE

    def forget(self, ids_U: Ints) -> None:
        places_U = self._place_R[ids_U]
        segments = self._segments(places_U[places_U != NOWHERE])
        np.subtract.at(self._counting_S, segments, 1)
        self._place_R[ids_U] = NOWHERE

    def begin_read(self, ids_U: Ints) -> StartedTransfer[Floats]:
        """By their blocks. What is behind it raises a DataError where a record is damaged."""
        places_U = self._place_R[ids_U]
        blocks_N, number_U = np.unique(places_U // self.shape.per_block, return_inverse=True)
        room, memory_NB = self._blocks(len(blocks_N))

        def finish() -> Floats:
            records = self._records(memory_NB)[number_U, places_U % self.shape.per_block]
            self._moving.rooms.give_back(room)
            self._check(ids_U, records)
            return records[:, HEAD:].view(np.float32)

        return StartedTransfer(finish, [IOJob(self._file, blocks_N.astype(np.int64) * self.shape.block, memory_NB)])

    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> StartedTransfer[None]:
        """Behind what was written last, together with rows that are moved."""
        self.forget(ids_U)
        numbers = np.ascontiguousarray(rows_UW, np.float32)
        words = [self._checksums(ids_U, numbers)[:, None], ids_U.astype(np.uint32)[:, None], numbers.view(np.uint32)]
        records = np.concatenate(words, axis=1)
        if self._short_of(len(records)):
            records = np.concatenate([records, self._emptied(len(records))])
        per, count = self.shape.per_block, len(records)
        blocks_N = self._taken(-(-count // per))
        room, memory_NB = self._blocks(len(blocks_N))
        lying = self._records(memory_NB)
        whole = count // per
        lying[:whole] = records[: whole * per].reshape(whole, per, self.shape.record)
        lying[whole:, : count - whole * per] = records[whole * per :]
        lying[whole:, count - whole * per :] = 0

        places = (blocks_N[:, None] * per + np.arange(per)).reshape(-1)[:count]
        self._place_R[records[:, 1]] = places
        np.add.at(self._counting_S, self._segments(places), 1)
        job = IOJob(self._file, blocks_N * self.shape.block, memory_NB)
        return StartedTransfer(lambda: self._moving.rooms.give_back(room), [job])

    def close(self) -> None:
        """Give the file back: nobody else can use it."""
        self._closed()
        self._file = -1

    def explained(self, error: TransferError, what: str) -> DataError:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            hint = f"free some space, then {AGAIN}"
        else:
            hint = f"look at the disk (dmesg, smartctl), then {AGAIN}"
        return DataError(
            f"{self.folder}: table {self.table!r}: cannot {what} its rows, at byte {error.offset:,} of their file: "
            f"{error.strerror}",
            hint,
        )

    def _short_of(self, records: int) -> bool:
        """Whether there are too few free blocks for so many."""
        return -(-records // self.shape.per_block) > self._free_blocks

    @property
    def _free_blocks(self) -> int:
        return len(self._free) * self.shape.blocks + self._open[1] - self._open[0]

    def _emptied(self, records: int) -> Words:
        """The rows of some segments, as records that count, which are nowhere and have left their segments free: of as
        many segments that all have room then, those and so many more records.

        Raises:
            DataError: the device gives an error, or a record is damaged.
        """
        shape, first_open = self.shape, self._open[0] // self.shape.blocks
        closed = np.ones(shape.segments, np.bool_)
        closed[self._free] = False
        if self._open[0] < self._open[1]:
            closed[first_open] = False
        order = np.flatnonzero(closed)
        order = order[np.argsort(self._counting_S[order], kind="stable")]
        needed = -(-(np.cumsum(self._counting_S[order]) + records) // shape.per_block)
        given = self._free_blocks + shape.blocks * np.arange(1, len(order) + 1)
        enough = np.flatnonzero(given >= needed + shape.blocks)  # and a segment for the calls that follow
        assert len(enough), "the file has room for twice the rows"
        chosen = np.sort(order[: int(enough[0]) + 1])
        found = self._counted(chosen[self._counting_S[chosen] > 0])
        self._free += chosen[::-1].tolist()
        self._place_R[found[:, 1]] = NOWHERE
        self._counting_S[chosen] = 0
        self.traffic.rows_moved += len(found)
        return found

    def _counted(self, segments: Ints) -> Words:
        """The records of these segments that are some row's."""
        shape = self.shape
        blocks_N = (segments[:, None] * shape.blocks + np.arange(shape.blocks)).reshape(-1)
        if not len(blocks_N):
            return np.zeros((0, shape.record), np.uint32)
        room, memory_NB = self._blocks(len(blocks_N))
        job = IOJob(self._file, blocks_N * shape.block, memory_NB)
        try:
            self.traffic.reads += self._moving.read([job])[0]
        except TransferError as error:
            raise self.explained(error, "read") from error
        self.traffic.read_bytes += memory_NB.nbytes
        records = self._records(memory_NB).reshape(-1, shape.record)
        places = (blocks_N[:, None] * shape.per_block + np.arange(shape.per_block)).reshape(-1)
        count = (self._place_R[np.minimum(records[:, 1], self.rows - 1)] == places) & (records[:, 1] < self.rows)
        found = records[count]
        self._moving.rooms.give_back(room)
        if len(found) != self._counting_S[segments].sum():
            there = np.flatnonzero(np.isin(self._segments(self._place_R), segments))
            raise self._damaged(np.setdiff1d(there, found[:, 1]))
        self._check(found[:, 1].astype(np.int64), found)
        return found

    def _taken(self, count: int) -> Ints:
        """So many blocks for what is written next."""
        found, lacking = [np.zeros(0, np.int64)], count
        while lacking:
            if self._open[0] == self._open[1]:
                first = self._free.pop() * self.shape.blocks
                self._open = (first, first + self.shape.blocks)
            some = min(lacking, self._open[1] - self._open[0])
            found.append(np.arange(self._open[0], self._open[0] + some))
            self._open = (self._open[0] + some, self._open[1])
            lacking -= some
        return np.concatenate(found)

    def _segments(self, places: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        return places // (self.shape.per_block * self.shape.blocks)

    def _blocks(self, count: int) -> tuple[Bytes, Bytes]:
        """Memory to be given back, and so many blocks (N, B) of it."""
        size = count * self.shape.block
        room = self._moving.rooms.take(size)
        return room, room[:size].reshape(count, self.shape.block)

    def _records(self, memory_NB: Bytes) -> Words:
        """(N, K, words of a record), a view."""
        used = self.shape.per_block * self.shape.record
        words = memory_NB.view(np.uint32)[:, :used]
        return words.reshape(len(memory_NB), self.shape.per_block, self.shape.record)

    def _check(self, ids_U: Ints, records: Words) -> None:
        """Raises a DataError that names the first row that is not what was written."""
        sums = self._checksums(ids_U, np.ascontiguousarray(records[:, HEAD:]).view(np.float32))
        damaged = np.flatnonzero((records[:, 0] != sums) | (records[:, 1] != ids_U))
        if len(damaged):
            raise self._damaged(ids_U[damaged])

    def _damaged(self, ids: Ints) -> DataError:
        return DataError(
            f"{self.folder}: table {self.table!r}: row {self._first + int(ids[0]):,} is not what was written there"
            + (f", nor are {len(ids) - 1:,} others" if len(ids) > 1 else ""),
            f"see who else writes there, look at the disk (dmesg, smartctl), then {AGAIN}",
        )

    def _checksums(self, ids_U: Ints, rows_UW: Floats) -> Words:
        """Half of the bits of a sum of the numbers' bits, each times an odd number of its own, mixed with the id."""
        with np.errstate(over="ignore"):
            words = rows_UW.view(np.uint32).astype(np.uint64) + np.uint64(1)
            mixed = (words * self._multipliers_W).sum(1, dtype=np.uint64) ^ hash_integers(ids_U)
        return (mixed ^ (mixed >> np.uint64(32))).astype(np.uint32)

    def _reserve(self) -> None:
        """Room for all segments."""
        size = self.shape.file_bytes
        try:
            allocate(self._file, size)
        except OSError as error:
            self.close()
            if error.errno not in {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}:
                raise
            raise _no_room(self.folder, [(self.table, size)]) from error


def check_room(folder: Path, tables: Sequence[tuple[str, int, int]]) -> None:
    """Whether a disk has room for the rows of all these tables, before the first of their files is made.

    Args:
        folder: for the files.
        tables: name, rows and numbers of a row of each.

    Raises:
        DataError: it has not, or there is no permission.
    """
    with explained_writes(folder):
        file, _, sector = unnamed_file(folder, direct=True)
        os.close(file)
    sizes = [(name, LogShape(rows, width, sector).file_bytes) for name, rows, width in tables]
    if sum(size for _, size in sizes) > free_bytes(folder):
        raise _no_room(folder, sizes)


def _no_room(folder: Path, sizes: Sequence[tuple[str, int]]) -> DataError:
    name, largest = max(sizes, key=lambda each: each[1])
    whose = f"table {name!r}"
    if len(sizes) > 1:
        whose = f"{len(sizes)} tables, of which {name!r} has the largest file ({largest:,} bytes),"
    return DataError(
        f"{folder}: the rows of {whose} need {sum(size for _, size in sizes):,} bytes on disk, and "
        f"{free_bytes(folder):,} are free",
        "free some space, or name a folder on another disk: planning.beyond_memory.folder",
    )
