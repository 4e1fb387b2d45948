"""Row stores and transfer threads for the tests of this folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ziggurat.storage.async_io import BlockDevice, FileRanges, Ring, Threads, Throttled, TransferError, TransferThread
from ziggurat.storage.native import NativeUnavailable
from ziggurat.storage.row_log import LogRows
from ziggurat.storage.row_store import Floats, Ints, MemoryRows, RowStore

METHODS = ("io_uring", "threads")
KINDS = ("memory", "log", "slow log")
SLOW = BlockDevice(read_s=1e-3, write_s=1e-3, reads=1e9, writes=1e9, read_bandwidth=1e12, write_bandwidth=1e12)
"""A device that is slower than the planning of batches."""


class FailingThreads(Threads):
    """Threads on a disk that fails at some transfer, and that writes nothing from then on.

    Args:
        at: number of the failing transfer, from 0.
        code: the errno that it fails with.

    Attributes:
        failed: what failed: "read" or "write"; empty before the failure.
    """

    def __init__(self, at: int, code: int) -> None:
        super().__init__(2)
        self._at, self._code, self._count = at, code, 0
        self.failed = ""

    def _transfer(self, writing: bool, ranges: FileRanges) -> None:
        time.sleep(1e-3)
        number, self._count = self._count, self._count + 1
        if number == self._at:
            self.failed = "write" if writing else "read"
            raise TransferError(self._code, int(ranges.files_M[0]), int(ranges.offsets_M[0]))
        if not (writing and self.failed):
            super()._transfer(writing, ranges)


def make_transfers(method: str) -> TransferThread:
    """Returns a transfer thread; skips the test if the machine has no io_uring."""
    if method == "threads":
        return Threads(3)
    try:
        return Ring(8)
    except NativeUnavailable as error:
        pytest.skip(str(error))


def initial(width: int) -> Callable[[Ints], Floats]:
    """Makes rows whose numbers encode the id and the column."""
    return lambda ids_U: (ids_U[:, None] * 100 + np.arange(width)).astype(np.float32)


def make_store(
    kind: str, folder: Path, rows: int, width: int, method: str = "threads", *, direct: bool = True
) -> RowStore:
    if kind == "memory":
        return MemoryRows(rows, width, initial(width))
    transfers = Throttled(make_transfers(method), SLOW) if kind == "slow log" else make_transfers(method)
    return LogRows(folder, "item", rows, width, initial(width), transfers, direct=direct)


def overwrite(store: RowStore, data: bytes, offset: int) -> None:
    """Overwrites bytes of a store's anonymous file, as another program might."""
    assert isinstance(store, LogRows)
    descriptor = os.open(file_path(store), os.O_RDWR)
    os.pwrite(descriptor, data, offset)
    os.fsync(descriptor)
    os.close(descriptor)


def file_path(store: LogRows) -> str:
    """Returns a path by which this process can open the store's anonymous file again."""
    return f"/proc/self/fd/{store._file}"  # pyright: ignore[reportPrivateUsage] - only these tests need it


def random_ids(random: np.random.Generator, rows: int, max_count: int) -> Ints:
    """Returns up to ``max_count`` distinct ids in ascending order."""
    count = int(random.integers(min(rows, max_count) + 1))
    ids: npt.NDArray[np.int64] = np.sort(random.choice(rows, count, replace=False))
    return ids
