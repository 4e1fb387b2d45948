"""What memory and a disk of this machine give to rows here and there, measured in some seconds.

Training beyond memory reads rows wherever they lie and writes them one behind the other. So that is what is measured:
of memory, rows gathered from a table that no cache holds; of a disk, blocks read at random with many requests on their
way, one request by itself, and a stretch written. What a read takes of the processor is told, because on few cores that
is what binds.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ziggurat.core.control_group import available_bytes
from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes
from ziggurat.core.progress import Progress, Silent
from ziggurat.storage.anonymous_files import allocate, free_bytes, unnamed_file
from ziggurat.storage.async_io import IOJob, TransferError, open_transfers

ROW_BYTES = 256
"""Of the rows that are gathered from memory: 64 numbers."""
TABLE, GATHERED = 2**28, 2**14
FILE, LEAST_FILE = 2**29, 2**25
"""Bytes of the file that is measured on: half a gibibyte, and not less than 32 MiB."""
BLOCKS = (512, 1024, 4096)
BATCH = 4096
"""Reads that are asked for together."""
STRETCH = 2**22


@dataclass(frozen=True, slots=True)
class Tier:
    """A place for rows.

    Attributes:
        name: memory, or the disk of a folder and how it is read.
        block: bytes that are read for a row.
        reads: a second, many on their way.
        read_s: one by itself; nan where it was not measured.
        processor_s: that one read takes.
        written: bytes a second, one behind the other.
        free: bytes that there are for somebody else.
        note: what the user should know of how it was read.
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
    """Of one thread."""
    table = np.ones((TABLE // ROW_BYTES, ROW_BYTES // 4), np.float32)  # zeros would have no pages of their own yet
    draw, into = np.random.default_rng(0), np.empty((GATHERED, ROW_BYTES // 4), np.float32)
    ids = [draw.integers(0, len(table), GATHERED) for _ in range(8)]
    gather = lambda turn: table.take(ids[turn % len(ids)], axis=0, out=into, mode="clip")  # noqa: E731
    rate, processor_s = _rate(gather, GATHERED, seconds)
    written, _ = _rate(lambda turn: table.fill(turn), table.nbytes, seconds / 2)
    return Tier("memory", ROW_BYTES, rate, float("nan"), processor_s, written, available_bytes())


def disk_tiers(folder: Path, seconds: float = 1.0, progress: Progress | None = None, most: int = FILE) -> list[Tier]:
    """Of the disk that ``folder`` lies on, for blocks of some sizes.

    Args:
        folder: a file lies there meanwhile, without a name.
        seconds: for each figure.
        progress: where to show it.
        most: bytes of that file; a quarter of what is free where that is less.

    Raises:
        DataError: there is no room, no permission, or the device gives an error.
    """
    progress = progress or Silent()
    free = free_bytes(folder)
    size = min(most, free // 4 // STRETCH * STRETCH)
    if size < LEAST_FILE:
        raise DataError(
            f"{folder}: {free:,} bytes are free, too few to measure with",
            f"free {4 * LEAST_FILE:,} bytes, or name a folder on another disk",
        )
    with explained_writes(folder):
        file, direct, sector = unnamed_file(folder, direct=True)
    transfers, why = open_transfers()
    try:
        with explained_writes(folder):
            allocate(file, size)
        stretch = np.frombuffer(mmap.mmap(-1, STRETCH), np.uint8).reshape(-1, 4096)
        stretch[:] = 1
        blocks = [block for block in BLOCKS if block >= sector]
        progress.start("measure the disk", len(blocks) + 1, "figures")
        turns = size // STRETCH

        def fill(turn: int) -> None:
            transfers.write([IOJob(file, turn % turns * STRETCH + np.arange(len(stretch)) * 4096, stretch)])

        for turn in range(turns):  # what was never written is not read from the device
            fill(turn)
        written, _ = _rate(fill, STRETCH, seconds)
        progress.advance(1)
        notes = [f"by threads: {why}"] * bool(why) + ["through the page cache, as if it were memory"] * (not direct)
        found: list[Tier] = []
        for block in blocks:
            figures = _reads(transfers.read, file, size, block, seconds)
            found.append(Tier(f"disk of {folder.resolve()}", block, *figures, written, free, "; ".join(notes)))
            progress.advance(1 + len(found))
        progress.finish()
        return found
    except TransferError as error:
        problem = f"{folder}: the disk gives an error: {error.strerror}"
        raise DataError(problem, "look at it (dmesg, smartctl)") from error
    finally:
        os.close(file)
        transfers.close()


def _reads(
    read: Callable[[Sequence[IOJob]], object], file: int, size: int, block: int, seconds: float
) -> tuple[float, float, float]:
    """A second, seconds of one by itself, seconds of the processor."""
    draw, memory = np.random.default_rng(0), np.frombuffer(mmap.mmap(-1, BATCH * block), np.uint8).reshape(-1, block)
    some = lambda: np.sort(draw.choice(size // block // 2, BATCH, replace=False)) * 2 * block  # noqa: E731 - no neighbours
    places = [some() for _ in range(8)]
    rate, processor_s = _rate(lambda turn: read([IOJob(file, places[turn % len(places)], memory)]), BATCH, seconds)
    alone, _ = _rate(lambda turn: read([IOJob(file, places[0][turn % BATCH, None], memory[:1])]), 1, seconds / 4)
    return rate, 1 / alone, processor_s


def _rate(work: Callable[[int], object], count: int, seconds: float) -> tuple[float, float]:
    """How much a second, where a call does ``count``, after one that is not measured; and seconds of the processor for
    one."""
    work(0)
    started, processor, turn = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < seconds:
        turn += 1
        work(turn)
    took = time.perf_counter() - started
    return turn * count / took, (time.process_time() - processor) / (turn * count)
