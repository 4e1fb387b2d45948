"""Out-of-core tables: some rows are cached in memory, the others are on a block device.

FBGEMM's kernel holds slots. When a batch's ids have arrived at the rank that has their rows, they are announced: the
rows are read into slots while earlier batches are trained (:mod:`ziggurat.storage.prefetcher`). At the batch's step,
ids are replaced by slots, and the kernel reads and updates rows as usual. The weights equal those of in-memory tables
bit for bit.

Shape legend: R rows of a shard, C slots, L ids, U distinct rows, W float32 values of a row (with states), D columns.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.plan import Span
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.copy_on_write import RowTensors
from ziggurat.embeddings.initial import initial_rows
from ziggurat.parallel.tensor_slices import RowSink
from ziggurat.storage.async_io import TransferMethod, TransferThread, open_transfers
from ziggurat.storage.prefetcher import Prefetcher, PrefetchTicket, TooManyRows
from ziggurat.storage.row_cache import RowCache
from ziggurat.storage.row_log import LogRows, check_disk_space
from ziggurat.storage.row_store import Floats, Initial, Ints

RowIds = Callable[[int, int], Tensor]
"""Returns the ids of the rows at so many positions from a first one on: (first, size) -> (size,)."""


@dataclass(frozen=True, slots=True)
class OffloadFolder:
    """Where and how rows that do not fit in memory are stored.

    Attributes:
        folder: the folder for anonymous files, one per shard.
        method: the I/O method for these files.
    """

    folder: Path
    method: TransferMethod = "auto"


@dataclass(slots=True, eq=False)
class AnnouncedBatch:
    """A batch's ids at this rank, announced to the prefetcher and to be replaced by slots.

    Attributes:
        ids: the ids of each TorchRec sharding (one per sharding type).
        ranges: for each shard, the ranges of its table's ids among those of its sharding.
        updates: whether the batch will be trained on.
        ticket: the prefetcher's ticket; None while the announcement is withdrawn.
    """

    ids: Sequence[KeyedJaggedTensor]
    ranges: list[list[tuple[int, int]]]
    updates: bool
    ticket: PrefetchTicket | None = None


@dataclass(slots=True)
class CachedTable:
    """A shard whose kernel holds slots.

    Attributes:
        spec: the whole table.
        rows: the rows of the table in this shard.
        tensors: "" -> the slots' weights (C, D), name -> their optimizer state, (C,) or (C, D); live.
        sharding: the index of the TorchRec sharding that the table is in.
        row_ids: the id of each row of the shard, where rows are stored in another order.
        widths: float32 values per row of each tensor.
    """

    spec: TableSpec
    rows: Span
    tensors: Mapping[str, Tensor]
    sharding: int
    row_ids: Tensor | None = None
    widths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.widths = [tensor[0].numel() for tensor in self.tensors.values()]

    def shapes(self) -> dict[str, Tensor]:
        """Returns tensor name -> a meta tensor with the shape that all rows of the shard would have."""
        return {
            name: torch.empty((self.rows.size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
            for name, tensor in self.tensors.items()
        }

    def split_tensors(self, rows_UW: Floats) -> RowTensors:
        """Splits full rows into tensor name -> its values, in that tensor's shape."""
        parts = np.split(rows_UW, np.cumsum(self.widths)[:-1], axis=1)
        return {
            name: torch.from_numpy(np.ascontiguousarray(part)).reshape(-1, *tensor.shape[1:])
            for (name, tensor), part in zip(self.tensors.items(), parts, strict=True)
        }


class OffloadedTables:
    """The shards of this rank whose kernels hold slots.

    Args:
        shards: the shards.
        offload: where and how their rows are stored.
        seed: the seed of the tables' initial weights.

    Attributes:
        note: a remark for the user on how rows are read; empty if there is none.
        prefetcher: reads the rows of announced batches into slots.
    """

    def __init__(self, shards: Sequence[CachedTable], offload: OffloadFolder, seed: int) -> None:
        self._shards = list(shards)
        sizes = [(shard.spec.name, shard.rows.size, sum(shard.widths)) for shard in shards]
        check_disk_space(offload.folder, sizes)
        self._transfers, why = open_transfers(offload.method)
        self.note = "" if not why or offload.method == "threads" else f"rows on disk are read by threads: {why}"
        with contextlib.ExitStack() as stack:
            stack.callback(self._transfers.close)
            self._stores = [
                stack.enter_context(contextlib.closing(self._store(s, offload, seed, self._transfers))) for s in shards
            ]
            caches = [
                RowCache(store, [tensor.detach().numpy() for tensor in shard.tensors.values()], shard.spec.name)
                for shard, store in zip(shards, self._stores, strict=True)
            ]
            if not all(store.direct for store in self._stores):
                self.note = "; ".join([*[self.note] * bool(self.note), f"{offload.folder}: {_PAGE_CACHE_NOTE}"])
            self.prefetcher = Prefetcher(caches)
            stack.callback(self.prefetcher.close)
            self._resources = stack.pop_all()
        self._waiting: deque[AnnouncedBatch] = deque()
        self._in_use: list[PrefetchTicket] = []

    @property
    def caches(self) -> list[RowCache]:
        """The caches of the shards, in order."""
        return self.prefetcher.caches

    def rows(self) -> list[CachedRows]:
        """Returns the rows of each shard for checkpoints, in order."""
        pairs = zip(self._shards, self.caches, strict=True)
        return [CachedRows(shard, cache, self.prefetcher) for shard, cache in pairs]

    def announce(self, ids: Sequence[KeyedJaggedTensor], *, updates: bool) -> AnnouncedBatch:
        """Announces a batch, so that its rows are read into slots after those of earlier announcements.

        A batch that is not trained on (an evaluation during training) jumps the queue: waiting batches are withdrawn
        and announced again after it, as its rows might not fit in the slots together with theirs.
        """
        batch = AnnouncedBatch(ids, [_ranges(shard.spec, ids[shard.sharding]) for shard in self._shards], updates)
        if updates:
            self._waiting.append(batch)
            self._announce_waiting()
        else:
            for other in self._waiting:
                self._withdraw(other)
            self._announce(batch)
        return batch

    def slot_ids(self, batch: AnnouncedBatch) -> list[KeyedJaggedTensor]:
        """Returns the ids of the next batch with those of these shards replaced by slots.

        The rows stay in their slots until :meth:`release`.
        """
        if batch.updates:
            assert self._waiting[0] is batch, "another batch's turn"
            self._announce_waiting()
            self._waiting.popleft()
        assert batch.ticket is not None
        self._in_use.append(batch.ticket)  # released in any case, even if waiting is interrupted
        try:
            slots = self.prefetcher.slots(batch.ticket)
        except TooManyRows:  # only this batch is given up, not those prefetched after it
            self.release()
            raise
        values = {number: batch.ids[number].values().clone() for number in {each.sharding for each in self._shards}}
        for shard, ranges, slots_L in zip(self._shards, batch.ranges, slots, strict=True):
            first = 0
            for begin, end in ranges:
                values[shard.sharding][begin:end] = torch.from_numpy(slots_L[first : first + end - begin])
                first += end - begin
        return [
            KeyedJaggedTensor(keys=ids.keys(), values=values[number], lengths=ids.lengths(), stride=ids.stride())
            if number in values
            else ids
            for number, ids in enumerate(batch.ids)
        ]

    def release(self) -> None:
        """Releases the slots of batches whose rows have been looked up and updated."""
        for ticket in self._in_use:
            self.prefetcher.done(ticket)
        self._in_use.clear()

    def drop(self, batch: AnnouncedBatch) -> None:
        """Withdraws a batch that will not be looked up."""
        if batch in self._waiting:
            self._waiting.remove(batch)
        self._withdraw(batch)

    def transferred(self) -> dict[str, float]:
        """Returns the transfer statistics so far.

        ``lookups`` and the ``hits`` among them, whose rows were in slots; rows ``missed``, distinct per batch; disk
        ``reads`` and ``writes``, with their bytes in ``read_bytes`` and ``written_bytes``; ``waited_s``, the seconds
        that training waited for rows; ``worked_s``, the seconds that the disk was busy.
        """
        if not self._shards:
            return {}
        found: dict[str, float] = defaultdict(float)
        for cache, store in zip(self.caches, self._stores, strict=True):
            found["lookups"] += cache.counts.lookups
            found["hits"] += cache.counts.hits
            found["missed"] += cache.counts.missed
            for name in ("reads", "writes", "read_bytes", "written_bytes"):
                found[name] += getattr(store.traffic, name)
        return {**found, "waited_s": self.prefetcher.waited_s, "worked_s": self._transfers.busy_s}

    def close(self) -> None:
        """Deletes the rows on disk; only checkpoints persist."""
        self._resources.close()

    @staticmethod
    def _store(shard: CachedTable, offload: OffloadFolder, seed: int, transfers: TransferThread) -> LogRows:
        name, width, initial = shard.spec.name, sum(shard.widths), _initialiser(shard, seed)
        rows = shard.rows
        return LogRows(offload.folder, name, rows.size, width, initial, transfers, first_row=rows.first)

    def _announce_waiting(self) -> None:
        """Announces the waiting batches that are not announced, in the order of their steps."""
        for batch in self._waiting:
            if batch.ticket is None:
                self._announce(batch)

    def _announce(self, batch: AnnouncedBatch) -> None:
        ids: list[Ints] = []
        for shard, ranges in zip(self._shards, batch.ranges, strict=True):
            values_L = batch.ids[shard.sharding].values().numpy()
            parts = [values_L[begin:end] for begin, end in ranges]
            ids.append(np.concatenate(parts or [_NO_IDS]).astype(np.int64, copy=False))
        batch.ticket = self.prefetcher.announce(ids, updates=batch.updates)

    def _withdraw(self, batch: AnnouncedBatch) -> None:
        if batch.ticket is not None:
            self.prefetcher.done(batch.ticket, dropped=True)
            batch.ticket = None


class CachedRows:
    """The rows of one shard for checkpoints; implements :class:`~ziggurat.embeddings.copy_on_write.RowSource`."""

    def __init__(self, shard: CachedTable, cache: RowCache, prefetcher: Prefetcher) -> None:
        self._shard, self._cache, self._prefetcher = shard, cache, prefetcher
        self.rows, self.device = shard.rows.size, torch.device("cpu")

    def ids(self, slots_L: Tensor) -> Tensor:
        """Returns the rows in these slots, which must stay there during the call."""
        return torch.from_numpy(self._cache.ids(slots_L.numpy()))

    def copy_before_update(self, rows_U: Tensor) -> RowTensors:
        """Returns a copy of rows that a batch is about to update, and which are therefore in slots."""
        return self._shard.split_tensors(self._cache.copy_cached(rows_U.numpy()))

    def copy_concurrently(self, rows_N: Tensor) -> RowTensors:
        """Returns a copy of ascending rows, from slots or from disk."""
        ids_N = rows_N.numpy()
        return self._shard.split_tensors(self._prefetcher.run_between(lambda: self._cache.read(ids_N)))

    def sinks(self) -> dict[str, RowSink]:
        """Returns tensor name -> the sink with which a restore replaces rows of it between two batches."""
        into, first, found = _ReplacedRows(self._shard, self._cache, self._prefetcher), 0, dict[str, RowSink]()
        for name, width in zip(self._shard.tensors, self._shard.widths, strict=True):
            found[name] = _Column(into, first)
            first += width
        return found


class _ReplacedRows:
    """Collects rows that are replaced tensor by tensor, and writes them once the values of all tensors are there."""

    def __init__(self, shard: CachedTable, cache: RowCache, prefetcher: Prefetcher) -> None:
        self._cache, self._prefetcher, self._width = cache, prefetcher, sum(shard.widths)
        self._ids_U = _NO_IDS
        self._rows_UW = np.zeros((0, self._width), np.float32)
        self._complete_W = np.zeros(self._width, np.bool_)

    def put(self, ids_U: Ints, first: int, values: Floats) -> None:
        columns = slice(first, first + values.shape[1])
        if self._complete_W[columns].any() or not np.array_equal(ids_U, self._ids_U):
            self.flush()
        if not self._complete_W.any():
            self._ids_U, self._rows_UW = ids_U, np.empty((len(ids_U), self._width), np.float32)
        self._rows_UW[:, columns] = values
        self._complete_W[columns] = True
        if self._complete_W.all():
            self.flush()

    def flush(self) -> None:
        if not self._complete_W.any():
            return
        order = np.argsort(self._ids_U)
        ids_U, rows_UW, complete_W = self._ids_U[order], self._rows_UW[order], self._complete_W.copy()
        self._complete_W[:] = False
        if not complete_W.all():
            rows_UW[:, ~complete_W] = self._prefetcher.run_between(lambda: self._cache.read(ids_U))[:, ~complete_W]
        self._prefetcher.run_between(lambda: self._cache.write(ids_U, rows_UW))


@dataclass(frozen=True, slots=True)
class _Column:
    """The :class:`~ziggurat.parallel.tensor_slices.RowSink` of one tensor, whose values start at ``first`` in a row."""

    into: _ReplacedRows
    first: int

    def put(self, rows_L: Tensor, first_column: int, values: Tensor) -> None:
        if len(rows_L):
            self.into.put(rows_L.numpy(), self.first + first_column, values.reshape(len(rows_L), -1).numpy())

    def flush(self) -> None:
        self.into.flush()


_NO_IDS: Ints = np.zeros(0, np.int64)
_PAGE_CACHE_NOTE = "its file system cannot bypass the page cache, which takes memory in addition to that of the rows"


def _ranges(spec: TableSpec, ids: KeyedJaggedTensor) -> list[tuple[int, int]]:
    """Returns the ranges of the table's ids among all ids."""
    keys = set(spec.keys)
    return [place for key, place in zip(ids.keys(), pairwise(ids.offset_per_key()), strict=True) if key in keys]


def _initialiser(shard: CachedTable, seed: int) -> Initial:
    """Returns a function that initialises rows: weights from the seed, optimizer states zero."""
    spec, states = shard.spec, sum(shard.widths[1:])

    def rows(ids_U: Ints) -> Floats:
        stored = shard.rows.first + ids_U if shard.row_ids is None else shard.row_ids.numpy()[ids_U].astype(np.int64)
        found = initial_rows(stored, spec.name, spec.init_std, seed, spec.dim)
        return np.concatenate([found, np.zeros((len(ids_U), states), np.float32)], axis=1)

    return rows
