"""Tables and caches in memory that the workers of a server share, and the look-ups in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.control_group import most_bytes
from ziggurat.core.digests import each_tensor
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import STATISTICS_FILE, TABLES
from ziggurat.serving.artefact.row_codec import Precision
from ziggurat.serving.tables.kernels import kernels
from ziggurat.serving.tables.lookup import Lookup
from ziggurat.serving.tables.pooled_cache import PooledCache
from ziggurat.serving.tables.row_cache import RowBytesCache
from ziggurat.serving.tables.serving_plan import ServingPlan, TablePlan
from ziggurat.serving.tables.shared_memory import SharedMemory
from ziggurat.serving.tables.stores import DiskTable, LoadedTable, load_rows, unreadable
from ziggurat.storage.async_io import TransferError, open_transfers
from ziggurat.storage.native import NativeUnavailable

Ints = npt.NDArray[np.int64]
_BLOCKS = 2048
"""Groups of blocks that are read together while a cache is filled."""


@dataclass(frozen=True, slots=True)
class Residence:
    """The memory of tables. A process that is started with it as an argument shares the memory.

    Attributes:
        folder: the export.
        plan: where its tables are.
        rows: table in memory -> its rows.
        caches: table on disk -> the cache of its rows.
        pooled: table on disk -> the cache of what its long bags become.
    """

    folder: Path
    plan: ServingPlan
    rows: dict[str, SharedMemory]
    caches: dict[str, RowBytesCache]
    pooled: dict[str, PooledCache]

    @property
    def precision(self) -> Precision:
        """How rows of tables in memory are stored."""
        return "fp32" if self.plan.options.dequantise else self.plan.manifest.precision

    def lookup(self) -> Lookup:
        """Returns the look-ups in the tables."""
        manifest, options = self.plan.manifest, self.plan.options
        tables: dict[str, LoadedTable | DiskTable] = {}
        for entry in manifest.tables:
            if entry.name in self.rows:
                tables[entry.name] = LoadedTable(self.rows[entry.name], entry, self.precision)
            else:
                path = self.folder / TABLES / entry.file
                cache, pooled = self.caches[entry.name], self.pooled.get(entry.name)
                tables[entry.name] = DiskTable(path, entry, manifest.precision, cache, pooled)
        return Lookup(manifest, tables, options.reads_of_a_table, options.reads_of_a_request)


def reside(folder: Path, plan: ServingPlan) -> Residence:
    """Loads tables as planned, and fills the caches of the others with the rows that training looked up most.

    Args:
        folder: the export.
        plan: where its tables are.

    Raises:
        EnvironmentMismatch: there is no C compiler, or not so much memory.
        DataError: a file cannot be read, or that of a table in memory is another than was written.
    """
    try:
        kernels()
    except NativeUnavailable as error:
        raise EnvironmentMismatch(f"--memory needs compiled kernels: {error}", "install gcc") from error
    manifest, options = plan.manifest, plan.options
    if plan.memory_bytes > (most := most_bytes()):
        raise EnvironmentMismatch(
            f"tables and caches take {plan.memory_bytes:,} bytes of memory; {most:,} are available here",
            "give less with --memory",
        )
    in_memory: Precision = "fp32" if options.dequantise else manifest.precision
    found = Residence(folder, plan, {}, {}, {})
    for table in plan.tables:
        entry, path = table.entry, folder / TABLES / table.entry.file
        if table.placed.cache_bytes is None:
            checksum = manifest.files[f"{TABLES}/{entry.file}"].checksum
            found.rows[entry.name] = load_rows(path, entry, manifest.precision, in_memory, checksum)
            continue
        width, what = entry.layout(manifest.precision).width, f"the cache of the table {entry.name!r}"
        cache = RowBytesCache(table.placed.cache_bytes, width, entry.rows, what)
        found.caches[entry.name] = cache
        if table.pooled_bytes:
            found.pooled[entry.name] = PooledCache(
                table.pooled_bytes, entry.dim, options.pooled_longer_than, options.pooled_any_order, what
            )
    on_disk = {table.entry.name: table for table in plan.tables if table.is_on_disk}
    stored = manifest.files.get(STATISTICS_FILE)
    if stored is not None and on_disk:  # the counts of one table at a time: those of 10⁸ rows take 800 MB
        for name, counts_R in each_tensor(folder / STATISTICS_FILE, stored.checksum, DAMAGED, names=on_disk):
            _fill(found, on_disk[name], counts_R)
            del counts_R  # before those of the next table are read
    return found


def _fill(residence: Residence, table: TablePlan, counts_R: Ints) -> None:
    """Keeps the rows that were looked up most, in memory for some thousands of them at a time."""
    frequencies = table.placed.demand.frequencies
    if frequencies is None:
        return
    path, cache = residence.folder / TABLES / table.entry.file, residence.caches[table.entry.name]
    cache.expect(counts_R)
    disk = DiskTable(path, table.entry, residence.plan.manifest.precision, cache)
    per_block, stride, width = disk.layout.per_block, disk.layout.stride, disk.layout.width
    memory = SharedMemory(_BLOCKS * stride, "reads").view.reshape(_BLOCKS, stride)
    transfers, _ = open_transfers()
    try:
        for few in frequencies.most_frequent(counts_R, cache.capacity):
            blocks, block_of = np.unique(few // per_block, return_inverse=True)
            for start in range(0, len(blocks), _BLOCKS):
                some = blocks[start : start + _BLOCKS]
                transfers.read_here([disk.job(some, memory[: len(some)])])
                first, last = np.searchsorted(block_of, [start, start + len(some)])
                mine = np.ascontiguousarray(few[first:last])
                groups = memory[:, : per_block * width].reshape(_BLOCKS, per_block, width)
                cache.put(mine, np.ascontiguousarray(groups[block_of[first:last] - start, mine % per_block]))
    except TransferError as error:
        raise unreadable(path, error.offset, error.strerror or "") from error
    finally:
        transfers.close()
        disk.close()
