"""Stores to try, and rows as they begin."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ziggurat.storage.async_io import BlockDevice, FileRanges, Ring, Slowed, Threads, TransferError, TransferThread
from ziggurat.storage.native import NativeUnavailable
from ziggurat.storage.row_log import LogRows
from ziggurat.storage.row_store import Floats, Ints, MemoryRows, RowStore

WAYS = ("io_uring", "threads")
KINDS = ("memory", "log", "slow log")
SLOW = BlockDevice(read_s=1e-3, write_s=1e-3, reads=1e9, writes=1e9, read_bandwidth=1e12, write_bandwidth=1e12)
"""A batch is planned faster than this brings the rows of the one before."""


class Failing(Threads):
    """Threads on a disk that fails at one time, and from then on writes nothing.

    Args:
        at: number of the failing request for blocks, from 0.
        code: what the system says then.
    """

    def __init__(self, at: int, code: int) -> None:
        super().__init__(2)
        self._at, self._code, self._asked = at, code, 0
        self.failed = ""

    def _stretches(self, writing: bool, every: FileRanges) -> None:
        time.sleep(1e-3)
        number, self._asked = self._asked, self._asked + 1
        if number == self._at:
            self.failed = "write" if writing else "read"
            raise TransferError(self._code, int(every.files_M[0]), int(every.offsets_M[0]))
        if not (writing and self.failed):
            super()._stretches(writing, every)


def transfers(way: str) -> TransferThread:
    """That way; skips the test where the machine has no io_uring."""
    if way == "threads":
        return Threads(3)
    try:
        return Ring(8)
    except NativeUnavailable as error:
        pytest.skip(str(error))


def initial(width: int) -> Callable[[Ints], Floats]:
    """Rows that say whose they are."""
    return lambda ids_U: (ids_U[:, None] * 100 + np.arange(width)).astype(np.float32)


def store(kind: str, folder: Path, rows: int, width: int, way: str = "threads", *, direct: bool = True) -> RowStore:
    if kind == "memory":
        return MemoryRows(rows, width, initial(width))
    moved = Slowed(transfers(way), SLOW) if kind == "slow log" else transfers(way)
    return LogRows(folder, "item", rows, width, initial(width), moved, direct=direct)


def overwrite(stored: RowStore, data: bytes, at: int) -> None:
    """As somebody else would, in the file without a name."""
    assert isinstance(stored, LogRows)
    descriptor = os.open(name_of(stored), os.O_RDWR)
    os.pwrite(descriptor, data, at)
    os.fsync(descriptor)
    os.close(descriptor)


def name_of(stored: LogRows) -> str:
    """By which this process can open the file again."""
    return f"/proc/self/fd/{stored._file}"  # pyright: ignore[reportPrivateUsage] - nobody else needs it


def distinct(draw: np.random.Generator, rows: int, most: int) -> Ints:
    """Some ascending ids."""
    found: npt.NDArray[np.int64] = np.sort(draw.choice(rows, int(draw.integers(min(rows, most) + 1)), replace=False))
    return found
