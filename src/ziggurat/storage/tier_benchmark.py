"""Measures, in a few seconds, how fast memory and a disk of this machine read and write rows.

Training with offloaded tables reads rows at random and writes them sequentially, so the benchmark measures the same. In
memory it gathers rows from a table that is larger than the processor's caches. On a disk it reads random blocks with
many requests in flight, then one request at a time, and writes sequentially. It also measures the processor time of a
read, because that is the bottleneck on machines with few cores.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.control_group import available_bytes
from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes
from ziggurat.core.progress import Progress, Silent
from ziggurat.storage.anonymous_files import allocate, anonymous_file, free_bytes
from ziggurat.storage.async_io import IOJob, TransferError, open_transfers

ROW_BYTES = 256
"""Bytes of a row that is gathered from memory: 64 numbers."""
TABLE_BYTES, GATHERED_ROWS = 2**28, 2**14
MAX_FILE_BYTES, MIN_FILE_BYTES = 2**29, 2**25
"""Bytes of the file on disk: at most half a gibibyte, at least 32 MiB."""
BLOCK_BYTES = (512, 1024, 4096)
BATCH_READS = 4096
"""Reads that are requested together."""
WRITE_BYTES = 2**22
"""Bytes of a sequential write."""


@dataclass(frozen=True, slots=True)
class Tier:
    """The measured performance of memory or of a disk.

    Attributes:
        name: "memory", or the disk of a folder.
        block: bytes that are read for a row.
        reads: reads per second with many in flight.
        read_s: seconds of a single read by itself; nan if it was not measured.
        processor_s: processor seconds per read.
        written: bytes per second of sequential writes.
        free: free bytes.
        note: how the disk was read, where the user should know that.
    """

    name: str
    block: int
    reads: float
    read_s: float
    processor_s: float
    written: float
    free: int
    note: str = ""


def memory_tier(seconds: float = 1.0) -> Tier:
    """Measures the memory of this machine with one thread, for about ``seconds`` per figure."""
    table = np.ones((TABLE_BYTES // ROW_BYTES, ROW_BYTES // 4), np.float32)  # zeros would share one physical page
    random, into = np.random.default_rng(0), np.empty((GATHERED_ROWS, ROW_BYTES // 4), np.float32)
    ids = [random.integers(0, len(table), GATHERED_ROWS) for _ in range(8)]
    gather = lambda turn: table.take(ids[turn % len(ids)], axis=0, out=into, mode="clip")  # noqa: E731
    rate, processor_s = _rate(gather, GATHERED_ROWS, seconds)
    written, _ = _rate(lambda turn: table.fill(turn), table.nbytes, seconds / 2)
    return Tier("memory", ROW_BYTES, rate, float("nan"), processor_s, written, available_bytes())


def disk_tiers(
    folder: str | Path, seconds: float = 1.0, progress: Progress | None = None, max_bytes: int = MAX_FILE_BYTES
) -> list[Tier]:
    """Measures the disk of a folder, once for each block size.

    Args:
        folder: the benchmark uses an anonymous file here, which is gone afterwards.
        seconds: approximate duration of the measurement of each figure.
        progress: where to report progress.
        max_bytes: size of that file, limited to a quarter of the free space.

    Raises:
        DataError: there is too little space or no permission, or the device reports an error.
    """
    folder, progress = Path(folder), progress or Silent()
    free = free_bytes(folder)
    size = min(max_bytes, free // 4 // WRITE_BYTES * WRITE_BYTES)
    if size < MIN_FILE_BYTES:
        raise DataError(
            f"{folder}: {free:,} bytes are free, too few to measure the disk",
            f"free {4 * MIN_FILE_BYTES:,} bytes, or name a folder on another disk",
        )
    with explained_writes(folder):
        file, direct, sector = anonymous_file(folder, direct=True)
    transfers, why = open_transfers()
    try:
        with explained_writes(folder):
            allocate(file, size)
        data = np.frombuffer(mmap.mmap(-1, WRITE_BYTES), np.uint8).reshape(-1, 4096)
        data[:] = 1
        blocks = [block for block in BLOCK_BYTES if block >= sector]
        progress.start("measure the disk", len(blocks) + 1, "figures")
        turns = size // WRITE_BYTES

        def fill(turn: int) -> None:
            transfers.write([IOJob(file, turn % turns * WRITE_BYTES + np.arange(len(data)) * 4096, data)])

        for turn in range(turns):  # a block that was never written is not read from the device
            fill(turn)
        written, _ = _rate(fill, WRITE_BYTES, seconds)
        progress.advance(1)
        notes = [f"by threads: {why}"] * bool(why) + ["through the page cache, so partly from memory"] * (not direct)
        found: list[Tier] = []
        for block in blocks:
            figures = _reads(transfers.read, file, size, block, seconds)
            found.append(Tier(f"disk of {folder.resolve()}", block, *figures, written, free, "; ".join(notes)))
            progress.advance(1 + len(found))
        progress.finish()
        return found
    except TransferError as error:
        problem = f"{folder}: the disk reports an error: {error.strerror}"
        raise DataError(problem, "check the disk (dmesg, smartctl)") from error
    finally:
        os.close(file)
        transfers.close()


def file_tier(path: str | Path, seconds: float = 0.5) -> Tier | None:
    """Measures random reads of 4,096 bytes of a file, past the page cache; None if it is too small for that.

    Raises:
        DataError: the file cannot be read.
    """
    path = Path(path)
    size = path.stat().st_size
    if size < MIN_FILE_BYTES:
        return None
    note = ""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:
        file, note = os.open(path, os.O_RDONLY | os.O_CLOEXEC), "through the page cache, so partly from memory"
    transfers, why = open_transfers()
    try:
        figures = _reads(transfers.read, file, size, BLOCK_BYTES[-1], seconds)
    except TransferError as error:
        raise DataError(f"{path}: the disk reports an error: {error.strerror}", "check the disk") from error
    finally:
        os.close(file)
        transfers.close()
    note = note or (f"by threads: {why}" if why else "")
    return Tier(f"disk of {path.parent.resolve()}", BLOCK_BYTES[-1], *figures, float("nan"), 0, note)


def _reads(
    read: Callable[[Sequence[IOJob]], object], file: int, size: int, block: int, seconds: float
) -> tuple[float, float, float]:
    """Returns reads per second, seconds of a single read by itself, and processor seconds per read."""
    random = np.random.default_rng(0)
    memory = np.frombuffer(mmap.mmap(-1, BATCH_READS * block), np.uint8).reshape(-1, block)

    def random_offsets() -> npt.NDArray[np.int64]:  # of even blocks only, so that no two reads are merged
        return np.sort(random.choice(size // block // 2, BATCH_READS, replace=False)) * 2 * block

    offsets = [random_offsets() for _ in range(8)]
    rate, processor_s = _rate(
        lambda turn: read([IOJob(file, offsets[turn % len(offsets)], memory)]), BATCH_READS, seconds
    )
    single_rate, _ = _rate(
        lambda turn: read([IOJob(file, offsets[0][turn % BATCH_READS, None], memory[:1])]), 1, seconds / 4
    )
    return rate, 1 / single_rate, processor_s


def _rate(work: Callable[[int], object], count: int, seconds: float) -> tuple[float, float]:
    """Repeats ``work``, of which a call does ``count`` units, after one unmeasured call.

    Returns:
        Units per second, and processor seconds per unit.
    """
    work(0)
    started, processor, turn = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        turn += 1
        work(turn)
    took = time.perf_counter() - started
    return turn * count / took, (time.process_time() - processor) / (turn * count)
