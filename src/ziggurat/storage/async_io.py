"""Asynchronous transfer of many blocks between files and memory, with io_uring or with threads.

Shape legend: N blocks, B bytes of a block, M requests, each for a file range of adjacent blocks.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ziggurat.storage.buffer_pool import BufferPool, Bytes
from ziggurat.storage.native import NativeUnavailable, library
from ziggurat.storage.row_reads import RowReads, turns

Ints = npt.NDArray[np.int64]

QUEUE_DEPTH = 256
"""Requests that an io_uring has in flight."""
THREADS = 16
"""Threads that read or write where io_uring is not available."""
MAX_REQUEST_BYTES = 2**18
"""Bytes of a request; longer file ranges are split, so that their parts are transferred concurrently."""


class TransferError(OSError):
    """A block cannot be read or written.

    Attributes:
        file: the file's descriptor.
        offset: where the failed file range, which contains the block, begins.
    """

    def __init__(self, code: int, file: int, offset: int) -> None:
        super().__init__(code, "the file ends before the block" if code == errno.ENODATA else os.strerror(code))
        self.file, self.offset = file, offset


@dataclass(frozen=True, slots=True, eq=False)
class IOJob:
    """Blocks of a file to read or write.

    Attributes:
        file: a descriptor. If it was opened with O_DIRECT, offsets, sizes and memory must be aligned as it requires.
        offsets_N: offset of each block in the file, bytes. Blocks that are adjacent in the file and in memory are
            transferred by one request.
        memory_NB: contiguous memory to read into or write from.
    """

    file: int
    offsets_N: Ints
    memory_NB: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class FileRanges:
    """File ranges to transfer; one request each.

    Attributes:
        files_M: descriptors, int32.
        offsets_M: offsets in the files, bytes.
        lengths_M: lengths, bytes.
        addresses_M: addresses in this process's memory.
    """

    files_M: npt.NDArray[np.int32]
    offsets_M: Ints
    lengths_M: Ints
    addresses_M: Ints


class TransferThread(ABC):
    """Transfers blocks in a background thread, call by call. Calls must come from one thread at a time.

    Attributes:
        buffers: reusable memory for blocks.
        busy_s: seconds that transfers have taken so far.
    """

    name: str

    def __init__(self) -> None:
        self.buffers, self.busy_s = BufferPool(), 0.0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="blocks")

    def read_here(self, jobs: Sequence[IOJob]) -> list[int]:
        """Reads blocks in the calling thread, which spares two changes of threads; otherwise like :meth:`read`.

        No other call may be running.
        """
        ranges, counts = _all_ranges(jobs)
        return self._run(ranges, jobs, counts, writing=False) if sum(counts) else counts

    def read_rows(self, wanted: Sequence[RowReads], most: int) -> list[int]:
        """Reads rows in the calling thread; returns how many reads each file took. No other call may be running.

        Args:
            wanted: the rows of each file.
            most: reads that may be in flight at a time.

        Raises:
            TransferError: a block cannot be read.
        """
        blocks = [each.blocks() for each in wanted]
        memory = [_pages(len(numbers), each.stride) for each, (numbers, _) in zip(wanted, blocks, strict=True)]
        reads = [0] * len(wanted)
        for turn in turns([len(numbers) for numbers, _ in blocks], [each.most for each in wanted], most):
            jobs = [
                IOJob(wanted[at].file, blocks[at][0][part] * wanted[at].stride, memory[at][part]) for at, part in turn
            ]
            for (at, _), count in zip(turn, self.read_here(jobs), strict=True):
                reads[at] += count
        for each, read, (_, block_of) in zip(wanted, memory, blocks, strict=True):
            each.take(read, block_of)
        return reads

    def begin(self, jobs: Sequence[IOJob], *, writing: bool) -> Future[list[int]]:
        """Starts to transfer blocks, all concurrently, after those of earlier calls.

        Returns:
            A future of the number of requests of each job; adjacent blocks share a request. It raises a TransferError
            if a block cannot be transferred (others may have been); ENODATA means that the file has no such block.
        """
        ranges, counts = _all_ranges(jobs)
        if not sum(counts):
            done: Future[list[int]] = Future()
            done.set_result(counts)
            return done
        return self._executor.submit(self._run, ranges, jobs, counts, writing=writing)

    def read(self, jobs: Sequence[IOJob]) -> list[int]:
        """Reads blocks and waits for them; returns the number of requests of each job.

        Raises:
            TransferError: see :meth:`begin`.
        """
        return self.begin(jobs, writing=False).result()

    def write(self, jobs: Sequence[IOJob]) -> list[int]:
        """Writes blocks; otherwise like :meth:`read`."""
        return self.begin(jobs, writing=True).result()

    def close(self) -> None:
        """Waits for transfers in flight, then releases all resources."""
        self._executor.shutdown()

    def _run(self, ranges: FileRanges, jobs: Sequence[IOJob], counts: list[int], *, writing: bool) -> list[int]:
        """Transfers all ranges, then returns ``counts``; ``jobs`` keep the memory alive that the addresses refer to."""
        started = time.perf_counter()
        try:
            self._transfer(writing, ranges)
        finally:
            self.busy_s += time.perf_counter() - started
            del jobs
        return counts

    @abstractmethod
    def _transfer(self, writing: bool, ranges: FileRanges) -> None:
        """Transfers all ranges and waits for them."""


def _all_ranges(jobs: Sequence[IOJob]) -> tuple[FileRanges, list[int]]:
    """Returns the file ranges of all jobs, and how many each job has."""
    parts = [file_ranges(job.offsets_N, job.memory_NB) for job in jobs]
    counts = [len(offsets) for offsets, _, _ in parts]
    files = np.repeat(np.array([job.file for job in jobs], np.int32), counts)
    offsets, lengths, addresses = (np.concatenate([part[number] for part in parts]) for number in range(3))
    return FileRanges(files, offsets, lengths, addresses), counts


def file_ranges(offsets_N: Ints, memory_NB: Bytes) -> tuple[Ints, Ints, Ints]:
    """Merges adjacent blocks into file ranges.

    Returns:
        Offset in the file, length and address in memory of each range, (M,) each.
    """
    count, size = memory_NB.shape
    assert len(offsets_N) == count, (offsets_N.shape, memory_NB.shape)
    assert memory_NB.flags.c_contiguous
    max_blocks = max(1, MAX_REQUEST_BYTES // size)
    adjacent = np.zeros(count, np.bool_)
    adjacent[1:] = offsets_N[1:] == offsets_N[:-1] + size
    starts = np.flatnonzero(~adjacent)
    runs = np.diff(np.append(starts, count))
    if len(runs) and runs.max() > max_blocks:
        parts = -(-runs // max_blocks)
        part_in_run = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        starts = np.repeat(starts, parts) + part_in_run * max_blocks
        runs = np.minimum(max_blocks, np.repeat(runs, parts) - part_in_run * max_blocks)
    addresses = memory_NB.ctypes.data + starts.astype(np.int64) * size
    return offsets_N[starts].astype(np.int64), runs.astype(np.int64) * size, addresses


def _pages(count: int, size: int) -> Bytes:
    """Returns memory for blocks that begins at a page, as O_DIRECT requires."""
    page = mmap.PAGESIZE
    memory = np.empty(count * size + page, np.uint8)
    first = -memory.ctypes.data % page
    return memory[first : first + count * size].reshape(count, size)


class _Rows(ctypes.Structure):
    """``struct rows``."""

    _fields_ = (
        ("count", ctypes.c_int64), ("per_block", ctypes.c_int64), ("stride", ctypes.c_int64), ("width", ctypes.c_int64),
        ("ids", ctypes.c_void_p), ("places", ctypes.c_void_p), ("out", ctypes.c_void_p),
        ("reads", ctypes.c_int64), ("file", ctypes.c_int32), ("most", ctypes.c_int32),
    )  # fmt: skip

    @classmethod
    def of(cls, reads: RowReads) -> _Rows:
        addresses = (each.ctypes.data for each in (reads.ids_L, reads.places_M, reads.rows_LW))
        width = reads.rows_LW.shape[1]
        return cls(
            len(reads.places_M), reads.per_block, reads.stride, width, *addresses, 0, reads.file, max(1, reads.most)
        )


class Ring(TransferThread):
    """Transfers with Linux's io_uring: one system call submits many requests, which the kernel processes concurrently.

    Args:
        depth: requests in flight at a time.

    Raises:
        NativeUnavailable: the native library is not available, or the kernel provides no io_uring.
    """

    name = "io_uring"

    def __init__(self, depth: int = QUEUE_DEPTH) -> None:
        super().__init__()
        self._library = library()
        problem = ctypes.c_int()
        self._ring: int | None = self._library.zr_open(depth, ctypes.byref(problem))
        if not self._ring:
            raise NativeUnavailable(f"the kernel provides no io_uring: {os.strerror(problem.value)}")

    def close(self) -> None:
        super().close()
        ring, self._ring = self._ring, None
        if ring:
            self._library.zr_close(ring)

    def read_rows(self, wanted: Sequence[RowReads], most: int) -> list[int]:
        assert self._ring, "closed"
        tables = (_Rows * len(wanted))(*map(_Rows.of, wanted))
        table, offset = ctypes.c_int64(), ctypes.c_int64()
        problem: int = self._library.zr_read_rows(
            self._ring, len(wanted), tables, max(1, most), ctypes.byref(table), ctypes.byref(offset)
        )
        if problem:
            raise TransferError(problem, wanted[table.value].file, offset.value)
        return [each.reads for each in tables]

    def _transfer(self, writing: bool, ranges: FileRanges) -> None:
        assert self._ring, "closed"
        failed = ctypes.c_int64()
        arrays = (ranges.files_M, ranges.offsets_M, ranges.lengths_M, ranges.addresses_M)
        pointers = (each.ctypes.data for each in arrays)
        problem: int = self._library.zr_transfer(
            self._ring, int(writing), len(ranges.files_M), *pointers, ctypes.byref(failed)
        )
        if problem:
            raise TransferError(problem, int(ranges.files_M[failed.value]), int(ranges.offsets_M[failed.value]))


class Threads(TransferThread):
    """Transfers with several threads, each of which reads or writes one file range after the other.

    Args:
        threads: number of threads.
    """

    name = "threads"

    def __init__(self, threads: int = THREADS) -> None:
        super().__init__()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows")

    def close(self) -> None:
        super().close()
        self._pool.shutdown()

    def _transfer(self, writing: bool, ranges: FileRanges) -> None:
        transfer = _write if writing else _read
        arrays = (ranges.files_M, ranges.addresses_M, ranges.lengths_M, ranges.offsets_M)
        requests = list(zip(*(each.tolist() for each in arrays), strict=True))

        def transfer_share(first: int) -> None:
            for file, address, length, offset in requests[first :: self._threads]:
                memory = (ctypes.c_char * length).from_address(address)
                transfer(file, memoryview(memory).cast("B"), offset)

        shares = [self._pool.submit(transfer_share, first) for first in range(min(self._threads, len(requests)))]
        wait(shares)  # even if one has failed: no thread may use the memory afterwards
        for done in shares:
            done.result()


def _read(file: int, into: memoryview, offset: int) -> None:
    _transfer_all(lambda rest, at: os.preadv(file, [rest], at), file, into, offset)


def _write(file: int, data: memoryview, offset: int) -> None:
    _transfer_all(lambda rest, at: os.pwritev(file, [rest], at), file, data, offset)


def _transfer_all(transfer: Callable[[memoryview, int], int], file: int, memory: memoryview, offset: int) -> None:
    """Repeats ``transfer`` until all of ``memory`` is transferred: a system call may transfer less."""
    done = 0
    while done < len(memory):
        try:
            count = transfer(memory[done:], offset + done)
        except OSError as error:
            raise TransferError(error.errno or errno.EIO, file, offset) from error
        if not count:
            raise TransferError(errno.ENODATA, file, offset)
        done += count


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """The performance of a block device according to its data sheet.

    Attributes:
        read_s, write_s: latency of a single request, seconds.
        reads, writes: maximum requests per second.
        read_bandwidth, write_bandwidth: maximum bytes per second.
    """

    read_s: float
    write_s: float
    reads: float
    writes: float
    read_bandwidth: float
    write_bandwidth: float


DEVICES: dict[str, BlockDevice] = {
    "nand": BlockDevice(77e-6, 18e-6, 637e3, 81.5e3, 3.2e9, 2.0e9),
    "3dxp": BlockDevice(10e-6, 10e-6, 550e3, 500e3, 2.4e9, 2.0e9),
}
"""Devices by their manufacturers' data sheets: Intel SSD DC P4510 of 2 TB (TLC NAND) and Intel Optane SSD DC P4800X
(3D XPoint); random transfers of 4 KiB."""


class Throttled(TransferThread):
    """Emulates a device that is slower than the real one: each call takes at least as long as on the slower device.

    Args:
        inner: performs the transfers.
        device: the slower device.
        depth: requests that the slower device has in flight at a time.
    """

    def __init__(self, inner: TransferThread, device: BlockDevice, depth: int = QUEUE_DEPTH) -> None:
        super().__init__()
        self._inner, self._device, self._depth = inner, device, depth
        self.name = f"{inner.name}, slowed"

    def close(self) -> None:
        super().close()
        self._inner.close()

    def seconds(self, requests: int, size: int, *, writing: bool) -> float:
        """Returns the minimum duration of ``requests`` requests for ``size`` bytes in total."""
        device = self._device
        each = (device.write_s, device.writes, device.write_bandwidth) if writing else (
            device.read_s, device.reads, device.read_bandwidth
        )  # fmt: skip
        latency, rate, bandwidth = each
        return max(latency * -(-requests // self._depth), requests / rate, size / bandwidth)

    def _transfer(self, writing: bool, ranges: FileRanges) -> None:
        end = time.perf_counter() + self.seconds(len(ranges.files_M), int(ranges.lengths_M.sum()), writing=writing)
        self._inner._transfer(writing, ranges)
        while (rest := end - time.perf_counter()) > 0:
            time.sleep(rest)


TransferMethod = Literal["auto", "io_uring", "threads"]


def open_transfers(method: TransferMethod = "auto") -> tuple[TransferThread, str]:
    """Opens a transfer thread.

    Args:
        method: ``auto`` uses io_uring if it is available and threads otherwise.

    Returns:
        The transfer thread, and the reason why it does not use io_uring; empty if it does.

    Raises:
        NativeUnavailable: ``method`` is ``io_uring``, which is not available.
    """
    if method == "threads":
        return Threads(), "threads were requested"
    try:
        return Ring(), ""
    except NativeUnavailable as error:
        if method == "io_uring":
            raise
        return Threads(), str(error)
