"""Ways to move many blocks between files and memory at a time.

Shape legend: N blocks, B bytes of a block, M requests: stretches of neighbouring blocks.
"""

from __future__ import annotations

import ctypes
import errno
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

Ints = npt.NDArray[np.int64]

DEPTH = 256
"""Requests that a ring has on their way."""
THREADS = 16
"""That read or write, where there is no ring."""
LONGEST = 2**18
"""Bytes of a stretch: longer ones are cut, so that their parts go side by side."""


class TransferError(OSError):
    """A block that could not be read or written.

    Attributes:
        file: the descriptor.
        offset: of a stretch of the file that it is in.
    """

    def __init__(self, code: int, file: int, offset: int) -> None:
        super().__init__(code, "the file ends before it" if code == errno.ENODATA else os.strerror(code))
        self.file, self.offset = file, offset


@dataclass(frozen=True, slots=True, eq=False)
class IOJob:
    """Blocks of a file.

    Attributes:
        file: a descriptor; where it was opened with O_DIRECT, offsets, sizes and memory are aligned as it wants.
        at_N: bytes from the file's beginning; blocks that lie one behind the other there, in memory too, go together.
        memory_NB: contiguous; where they go, or come from.
    """

    file: int
    at_N: Ints
    memory_NB: Bytes


@dataclass(frozen=True, slots=True, eq=False)
class FileRanges:
    """What is to be moved, as requests.

    Attributes:
        files_M: descriptors, int32.
        offsets_M: in them, bytes.
        lengths_M: bytes.
        addresses_M: in this process's memory.
    """

    files_M: npt.NDArray[np.int32]
    offsets_M: Ints
    lengths_M: Ints
    addresses_M: Ints


class TransferThread(ABC):
    """Moves blocks in a thread of its own, those of one call after those of the calls before. For one thread at a time.

    Attributes:
        rooms: memory for blocks.
        worked_s: seconds that the device was at work so far.
    """

    name: str

    def __init__(self) -> None:
        self.rooms, self.worked_s = BufferPool(), 0.0
        self._mover = ThreadPoolExecutor(1, thread_name_prefix="blocks")

    def begin(self, jobs: Sequence[IOJob], *, writing: bool) -> Future[list[int]]:
        """Have blocks of some files moved, all side by side, once those of the calls before have been.

        The future's result says how many requests each job took: blocks that lie one behind the other go together. Its
        TransferError: one of them could not be moved, others may have been; ENODATA: the file has no such block.
        """
        parts = [file_ranges(job.at_N, job.memory_NB) for job in jobs]
        counts = [len(offsets) for offsets, _, _ in parts]
        if not sum(counts):
            done: Future[list[int]] = Future()
            done.set_result(counts)
            return done
        files = np.repeat(np.array([job.file for job in jobs], np.int32), counts)
        offsets, lengths, addresses = (np.concatenate([part[number] for part in parts]) for number in range(3))
        every = FileRanges(files, offsets, lengths, addresses)
        return self._mover.submit(self._moved, every, jobs, counts, writing=writing)

    def read(self, jobs: Sequence[IOJob]) -> list[int]:
        """Blocks of some files into memory, by :meth:`begin`, and wait for them.

        Raises:
            TransferError: as the future's.
        """
        return self.begin(jobs, writing=False).result()

    def write(self, jobs: Sequence[IOJob]) -> list[int]:
        """As :meth:`read`, the other way."""
        return self.begin(jobs, writing=True).result()

    def close(self) -> None:
        """Give back what it holds, once what was begun is done."""
        self._mover.shutdown()

    def _moved(self, every: FileRanges, memory: Sequence[IOJob], counts: list[int], *, writing: bool) -> list[int]:
        """The counts, once all is moved; ``memory``: what the addresses are of, which stays as long."""
        started = time.perf_counter()
        try:
            self._stretches(writing, every)
        finally:
            self.worked_s += time.perf_counter() - started
            del memory
        return counts

    @abstractmethod
    def _stretches(self, writing: bool, every: FileRanges) -> None: ...


def file_ranges(at_N: Ints, memory_NB: Bytes) -> tuple[Ints, Ints, Ints]:
    """Blocks that lie one behind the other in the file as one request: its offset in the file, its length, and its
    address in memory; each (M,)."""
    count, size = memory_NB.shape
    assert len(at_N) == count, (at_N.shape, memory_NB.shape)
    assert memory_NB.flags.c_contiguous
    most = max(1, LONGEST // size)
    follows = np.zeros(count, np.bool_)
    follows[1:] = at_N[1:] == at_N[:-1] + size
    begins = np.flatnonzero(~follows)
    runs = np.diff(np.append(begins, count))
    if len(runs) and runs.max() > most:
        parts = -(-runs // most)
        inner = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        begins = np.repeat(begins, parts) + inner * most
        runs = np.minimum(most, np.repeat(runs, parts) - inner * most)
    addresses = memory_NB.ctypes.data + begins.astype(np.int64) * size
    return at_N[begins].astype(np.int64), runs.astype(np.int64) * size, addresses


class Ring(TransferThread):
    """Linux's io_uring: one system call for many requests, which the kernel has on their way together.

    Args:
        depth: requests on their way at a time.

    Raises:
        NativeUnavailable: no compiled part, or the kernel gives no ring.
    """

    name = "io_uring"

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__()
        self._library = library()
        problem = ctypes.c_int()
        self._ring: int | None = self._library.zr_open(depth, ctypes.byref(problem))
        if not self._ring:
            raise NativeUnavailable(f"the kernel gives no io_uring: {os.strerror(problem.value)}")

    def close(self) -> None:
        super().close()
        ring, self._ring = self._ring, None
        if ring:
            self._library.zr_close(ring)

    def _stretches(self, writing: bool, every: FileRanges) -> None:
        assert self._ring, "closed"
        failed = ctypes.c_int64()
        arrays = (every.files_M, every.offsets_M, every.lengths_M, every.addresses_M)
        pointers = (each.ctypes.data for each in arrays)
        problem: int = self._library.zr_transfer(
            self._ring, int(writing), len(every.files_M), *pointers, ctypes.byref(failed)
        )
        if problem:
            raise TransferError(problem, int(every.files_M[failed.value]), int(every.offsets_M[failed.value]))


class Threads(TransferThread):
    """Some threads that read or write one stretch after the other.

    Args:
        threads: how many.
    """

    name = "threads"

    def __init__(self, threads: int = THREADS) -> None:
        super().__init__()
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="rows")

    def close(self) -> None:
        super().close()
        self._pool.shutdown()

    def _stretches(self, writing: bool, every: FileRanges) -> None:
        move = _written if writing else _read
        arrays = (every.files_M, every.addresses_M, every.lengths_M, every.offsets_M)
        requests = list(zip(*(each.tolist() for each in arrays), strict=True))

        def some(first: int) -> None:
            for file, address, length, offset in requests[first :: self._threads]:
                memory = (ctypes.c_char * length).from_address(address)
                move(file, memoryview(memory).cast("B"), offset)

        begun = [self._pool.submit(some, first) for first in range(min(self._threads, len(requests)))]
        wait(begun)  # also where one has failed: the memory is nobody's then
        for done in begun:
            done.result()


def _read(file: int, into: memoryview, offset: int) -> None:
    _whole(lambda rest, at: os.preadv(file, [rest], at), file, into, offset)


def _written(file: int, data: memoryview, offset: int) -> None:
    _whole(lambda rest, at: os.pwritev(file, [rest], at), file, data, offset)


def _whole(move: Callable[[memoryview, int], int], file: int, memory: memoryview, offset: int) -> None:
    done = 0
    while done < len(memory):
        try:
            moved = move(memory[done:], offset + done)
        except OSError as error:
            raise TransferError(error.errno or errno.EIO, file, offset) from error
        if not moved:
            raise TransferError(errno.ENODATA, file, offset)
        done += moved


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """What a data sheet says of a block device.

    Attributes:
        read_s, write_s: seconds that one request takes by itself.
        reads, writes: requests a second at most.
        read_bandwidth, write_bandwidth: bytes a second at most.
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
"""By their makers' data sheets: Intel SSD DC P4510 of 2 TB (TLC NAND) and Intel Optane SSD DC P4800X (3D XPoint),
random transfers of 4 KiB."""


class Slowed(TransferThread):
    """Another way, on a device that is slower than the real one: each batch takes at least what the slower device
    would.

    Args:
        inner: what really moves blocks.
        device: the slower one.
        depth: requests that it has on their way at a time.
    """

    def __init__(self, inner: TransferThread, device: BlockDevice, depth: int = DEPTH) -> None:
        super().__init__()
        self._inner, self._device, self._depth = inner, device, depth
        self.name = f"{inner.name}, slowed"

    def close(self) -> None:
        super().close()
        self._inner.close()

    def seconds(self, requests: int, size: int, *, writing: bool) -> float:
        """That so many requests of so many bytes together take at least."""
        device = self._device
        each = (device.write_s, device.writes, device.write_bandwidth) if writing else (
            device.read_s, device.reads, device.read_bandwidth
        )  # fmt: skip
        latency, rate, bandwidth = each
        return max(latency * -(-requests // self._depth), requests / rate, size / bandwidth)

    def _stretches(self, writing: bool, every: FileRanges) -> None:
        end = time.perf_counter() + self.seconds(len(every.files_M), int(every.lengths_M.sum()), writing=writing)
        self._inner._stretches(writing, every)
        while (rest := end - time.perf_counter()) > 0:
            time.sleep(rest)


Way = Literal["auto", "io_uring", "threads"]


def open_transfers(way: Way = "auto") -> tuple[TransferThread, str]:
    """The best way that this machine has, and why it is not io_uring, if it is not; ``io_uring``: no other.

    Raises:
        NativeUnavailable: io_uring was asked for, and is not there.
    """
    if way == "threads":
        return Threads(), "threads were asked for"
    try:
        return Ring(), ""
    except NativeUnavailable as error:
        if way == "io_uring":
            raise
        return Threads(), str(error)
