"""A contestant of ``row_store``: ``python -m bench.system.row_contestants KIND FOLDER ROWS``.

It fills a store of rows, reports that it is ready, and then reads or updates batches of rows on request.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.storage.async_io import IOJob, Ring, Threads
from ziggurat.storage.row_log import LogRows
from ziggurat.storage.row_store import Floats, Ints

WIDTH = 17
"""The floats of a row: sixteen weights and the state of row-wise Adagrad."""
BATCH, BATCHES = 4096, 10
FILLED = 2**16
KINDS = ("io_uring", "threads", "memmap", "rocksdb", "device")


class Store(ABC):
    """Rows by id."""

    @abstractmethod
    def read(self, ids_U: Ints) -> Floats: ...

    @abstractmethod
    def write(self, ids_U: Ints, rows_UW: Floats) -> None: ...


class Ours(Store):
    """Our files, which bypass the page cache."""

    def __init__(self, folder: Path, rows: int, kind: str) -> None:
        transfers = Threads() if kind == "threads" else Ring()
        self._rows = LogRows(folder, "t", rows, WIDTH, _zeros, transfers)

    def read(self, ids_U: Ints) -> Floats:
        return self._rows.read(ids_U)

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        self._rows.write(ids_U, rows_UW)


class Memmap(Store):
    """A memory-mapped file, with the kernel's hint that access is random."""

    def __init__(self, path: Path, rows: int) -> None:
        with path.open("wb") as file:
            file.truncate(4 * WIDTH * rows)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._map.madvise(mmap.MADV_RANDOM)
        self._rows_RW = np.frombuffer(self._map, np.float32).reshape(rows, WIDTH)

    def read(self, ids_U: Ints) -> Floats:
        return self._rows_RW[ids_U]

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        self._rows_RW[ids_U] = rows_UW


def without_rocksdb() -> str | None:
    """Returns why RocksDB cannot take part, or None if it can."""
    return None if find_spec("rocksdict") else "rocksdict is not installed: make dev"


class RocksDB(Store):
    """RocksDB through rocksdict; keys are ids, values are rows."""

    def __init__(self, path: Path, width: int = WIDTH, cache_mb: int = 32, buffer: int | None = None) -> None:
        self._width = width
        from rocksdict import Options, Rdict

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.optimize_for_point_lookup(cache_mb)
        if buffer is not None:
            options.set_write_buffer_size(buffer)
        options.set_use_direct_reads(True)
        self._rows: Any = Rdict(str(path), options)

    def read(self, ids_U: Ints) -> Floats:
        found: list[bytes] = self._rows.get(_keys(ids_U))
        return np.frombuffer(b"".join(found), np.float32).reshape(len(ids_U), self._width)

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        from rocksdict import WriteBatch

        batch, size, data = WriteBatch(raw_mode=True), 4 * self._width, rows_UW.tobytes()
        for number, key in enumerate(_keys(ids_U)):
            batch.put(key, data[number * size : (number + 1) * size])
        self._rows.write(batch)


class Device(Store):
    """A file with a sector for each row at a fixed place, which measures the disk alone."""

    def __init__(self, path: Path, rows: int) -> None:
        self._ring, self._file = Ring(), os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        os.posix_fallocate(self._file, 0, 512 * rows)
        self._memory = np.frombuffer(mmap.mmap(-1, FILLED * 512), np.uint8).reshape(FILLED, 512)

    def read(self, ids_U: Ints) -> Floats:
        self._move(ids_U, reading=True)
        return np.zeros((0, WIDTH), np.float32)

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        self._move(ids_U, reading=False)

    def _move(self, ids_U: Ints, *, reading: bool) -> None:
        (self._ring.read if reading else self._ring.write)([IOJob(self._file, 512 * ids_U, self._memory[: len(ids_U)])])


def _zeros(ids_U: Ints) -> Floats:
    return np.zeros((len(ids_U), WIDTH), np.float32)


def opened(kind: str, folder: Path, rows: int) -> Store:
    path = folder / kind
    match kind:
        case "memmap":
            return Memmap(path, rows)
        case "rocksdb":
            return RocksDB(path)
        case "device":
            return Device(path, rows)
        case _:
            return Ours(folder, rows, kind)


def main(kind: str, folder: Path, rows: int) -> None:
    store, draw = opened(kind, folder, rows), np.random.default_rng(0)
    for first in range(0, rows, FILLED):
        ids = np.arange(first, min(first + FILLED, rows))
        store.write(ids, _rows(ids, 0))
    print(json.dumps({"ready": {"threads": 1, "versions": _versions(kind)}}), flush=True)
    for turn, line in enumerate(sys.stdin, 1):
        seconds, processor_s = time.perf_counter(), time.process_time()
        for number in range(BATCHES):
            ids = np.unique(draw.integers(0, rows, BATCH))
            found = store.read(ids)
            assert kind == "device" or np.array_equal(found[:, 0], ids.astype(np.float32)), "other rows"
            if line.strip() == "update":
                store.write(ids, _rows(ids, turn * BATCHES + number))
        done = BATCHES * BATCH
        print(
            json.dumps(
                {
                    "rows_per_s": done / (time.perf_counter() - seconds),
                    "processor_us": 1e6 * (time.process_time() - processor_s) / done,
                }
            ),
            flush=True,
        )


def _rows(ids_U: Ints, turn: int) -> Floats:
    """Returns rows that contain their id, followed by the number of the turn."""
    found = np.full((len(ids_U), WIDTH), turn, np.float32)
    found[:, 0] = ids_U
    return found


def _keys(ids_U: npt.NDArray[np.int64]) -> list[bytes]:
    data = ids_U.astype(">u8").tobytes()
    return [data[first : first + 8] for first in range(0, len(data), 8)]


def _versions(kind: str) -> dict[str, str]:
    if kind != "rocksdb":
        return {}
    from importlib.metadata import version

    return {"rocksdict": version("rocksdict")}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
