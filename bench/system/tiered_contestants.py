"""A contestant of ``tiered_training``: ``python -m bench.system.tiered_contestants KIND FOLDER EXPONENT MEMORY``.

It takes steps on request, on batches drawn in advance, and reports their measurements.

=============  ====================================================================================
memory         all rows in memory
look_ahead     cache slots for as many rows as fit in MEMORY bytes, the others in files; prefetched
no_look_ahead  the same without prefetching: the rows of a batch are requested when its step begins
lru            the same without prefetching and with eviction of the least recently used rows
rocksdb        RocksDB with a database per table and a cache of MEMORY bytes; no cache of ours
nand, 3dxp     as look_ahead, on files in memory with the delays of such a device
paging         kernels on a memory-mapped file, of which the system keeps as much as fits in memory
base           tables of a few rows, to measure the memory of the program
=============  ====================================================================================
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torchrec.distributed.batched_embedding_kernel import BatchedFusedEmbeddingBag
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from bench.micro.big_tables import CPU, BigTables, Size, drawn
from bench.system.plain_caches import LeastRecentlyUsed, OneBatch
from bench.system.row_contestants import RocksDB
from ziggurat.core.plan import Plan
from ziggurat.embeddings import offload
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.planning.offload import memory_needs, with_slots
from ziggurat.planning.usage import Usage
from ziggurat.storage.async_io import DEVICES, Throttled, open_transfers
from ziggurat.storage.row_store import Floats, Initial, Ints, RowStore, StartedTransfer
from ziggurat.training.process_group import process_group

FULL = Size(26, 150_000, 64, 4096, 2_000_000, (512, 256))
QUICK = Size(4, 4_000, 32, 64, 20_000, (16,))
BASE_ROWS = 64


class RocksRows(RowStore):
    """Rows in RocksDB; rows that were never written have their initial values."""

    direct = True
    """Whether files bypass the page cache, as RocksDB's direct reads do."""

    def __init__(self, path: Path, rows: int, width: int, initial: Initial, cache: float) -> None:
        super().__init__(rows, width, initial)
        self._rows = RocksDB(path, width, cache_mb=max(1, int(cache / 2**20)), buffer=4 * 2**20)
        self._written_R = np.zeros(rows, np.bool_)

    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        return self._written_R[ids_U]

    def forget(self, ids_U: Ints) -> None: ...

    def begin_read(self, ids_U: Ints) -> StartedTransfer[Floats]:
        rows_UW = self._rows.read(ids_U)
        return StartedTransfer(lambda: rows_UW)

    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> StartedTransfer[None]:
        self._written_R[ids_U] = True
        self._rows.write(ids_U, np.ascontiguousarray(rows_UW))
        return StartedTransfer(lambda: None)

    def close(self) -> None: ...


class Training:
    """The training of one kind of contestant.

    Args:
        kind: the kind (see the module).
        folder: the folder of its files.
        exponent: the exponent of Zipf's law for the ids.
        memory: the bytes for rows, for kinds that do not keep all rows in memory.
        size: the size of the model.
    """

    def __init__(self, kind: str, folder: Path, exponent: float, memory: float, size: Size) -> None:
        names = [f"t{number}" for number in range(size.tables)]
        plan, offload_folder = Plan.single_device(names), None
        if kind in {"look_ahead", "no_look_ahead", "lru", *DEVICES}:
            specs = BigTables.specs(size)
            usages = {spec.name: _usage(size, number, exponent) for number, spec in enumerate(specs)}
            plan, offload_folder = (
                with_slots(plan, specs, usages, size.batch_size, memory_needs(size.batch_size), memory),
                OffloadFolder(folder / kind),
            )
        if kind == "lru":
            offload.RowCache = LeastRecentlyUsed
        if kind in DEVICES:
            offload.open_transfers = lambda method: (Throttled(open_transfers(method)[0], DEVICES[kind]), "")
        if kind == "rocksdb":
            slots = min(size.rows, size.batch_size)
            placements = {name: replace(each, slots=slots) for name, each in plan.placements.items()}
            plan, offload_folder = replace(plan, placements=placements), OffloadFolder(folder / kind)
            _use_rocksdb(folder / kind, memory / size.tables - slots * 4 * (size.dim + 1))
        self.model = BigTables(size, exponent, plan, offload_folder)
        if kind in {"no_look_ahead", "lru", "rocksdb"}:
            cast("Any", EmbeddingLookup).prefetch_batches = property(lambda _: 0)
        if kind == "paging":
            for number, kernel in enumerate(self._kernels()):
                _map(kernel, folder / f"paging-{number}")

    def _kernels(self) -> Iterator[Any]:
        for module in self.model.modules():
            if isinstance(module, ShardedEmbeddingBagCollection):
                for lookup in module._lookups:  # pyright: ignore[reportPrivateUsage] - a plain list, no submodules
                    yield from (each for each in lookup.modules() if isinstance(each, BatchedFusedEmbeddingBag))


def _use_rocksdb(folder: Path, cache: float) -> None:
    """Replaces our log and our cache by RocksDB, with a cache of ``cache`` bytes per table."""

    def rows(at: Path, table: str, rows: int, width: int, initial: Initial, *_: object, **__: object) -> RocksRows:
        return RocksRows(at / table, rows, width, initial, cache)

    folder.mkdir(parents=True)
    offload.LogRows = cast("Any", rows)
    offload.RowCache = OneBatch


def _usage(size: Size, table: int, exponent: float) -> Usage:
    accesses = np.bincount(drawn(size, table, exponent), minlength=size.rows)
    return Usage(1.0, accesses.astype(np.int64), size.rows)


def _map(kernel: Any, path: Path) -> None:
    """Moves the kernel's weights to a memory-mapped file."""
    inner = kernel.emb_module
    weights = inner.weights_host
    weights.detach().numpy().tofile(path)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # evicts it from the page cache
    mapped.madvise(mmap.MADV_RANDOM)
    first, size = weights.data_ptr(), weights.nbytes
    weights.data = torch.frombuffer(mapped, dtype=torch.float32)
    begin, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, (first + size) // mmap.PAGESIZE * mmap.PAGESIZE
    # TorchRec's optimizer keeps a view of the old weights, which is never read. Its pages are released.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def main(kind: str, folder: Path, exponent: float, memory: float, quick: bool) -> None:
    torch.set_num_threads(1)
    size = QUICK if quick else FULL
    if kind == "base":
        size = Size(size.tables, BASE_ROWS, size.dim, size.batch_size, size.drawn, size.hidden)
    with process_group(CPU):
        training = Training(kind, folder, exponent, memory, size)
        print(json.dumps({"ready": {"threads": 1, "versions": {}}}), flush=True)
        for line in sys.stdin:
            steps, most_s = line.split()
            print(json.dumps(_measured(training.model, int(steps), float(most_s))), flush=True)
        training.model.close()


def _measured(model: BigTables, steps: int, most_s: float) -> dict[str, float]:
    """Takes up to ``steps`` steps in about ``most_s`` seconds; returns seconds and transfer counters per step."""
    batches, losses = model.batches(steps), list[float]()
    before, processor_s, started = model.transferred(), time.process_time(), time.perf_counter()
    with contextlib.closing(model.losses(batches)) as taken:
        for loss in taken:
            losses.append(loss)
            if time.perf_counter() - started > most_s:
                break
    done = len(losses)
    seconds = time.perf_counter() - started
    moved = {name: (value - before.get(name, 0.0)) / done for name, value in model.transferred().items()}
    with Path("/proc/self/status").open() as status:
        peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    processor = (time.process_time() - processor_s) / done
    return {
        "seconds": seconds / done,
        "steps": done,
        "loss": losses[-1],
        "peak": peak,
        "processor_s": processor,
        **moved,
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), "quick" in sys.argv[5:])
