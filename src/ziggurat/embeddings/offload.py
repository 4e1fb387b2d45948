"""Tables of which memory has room for some rows; the others are on a block device.

FBGEMM's kernel holds slots. When a batch's ids have come to the rank that has their rows, they are announced: the rows
are brought into slots while batches before are trained (:mod:`ziggurat.storage.prefetcher`). When the batch's turn
comes, slots take the place of ids, and the kernel reads and updates rows as it does elsewhere: weights are, to the bit,
those of tables that memory has room for.

Shape legend: R rows of a shard, C slots, L ids, U distinct rows, W float32 numbers of a row, D columns.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.plan import Span
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.copy_on_write import Numbers
from ziggurat.embeddings.initial import initial_rows
from ziggurat.parallel.tensor_slices import RowSink
from ziggurat.storage.async_io import TransferThread, Way, open_transfers
from ziggurat.storage.prefetcher import Prefetcher, PrefetchTicket, TooManyRows
from ziggurat.storage.row_cache import RowCache
from ziggurat.storage.row_log import LogRows, check_room
from ziggurat.storage.row_store import Floats, Initial, Ints


@dataclass(frozen=True, slots=True)
class OffloadFolder:
    """Where rows lie that memory has no room for.

    Attributes:
        folder: of files without names, one a shard.
        way: how they are read and written.
    """

    folder: Path
    way: Way = "auto"


@dataclass(slots=True, eq=False)
class Line:
    """Ids of a batch, as they came to this rank, on their way to become slots.

    Attributes:
        ids: of each of TorchRec's ways of sharding.
        ranges: of each shard, where its table's ids lie among those of its way.
        updates: whether the batch will be trained on.
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
        rows: of the table, here.
        tensors: "" -> the slots' weights (C, D), name -> a state of the optimizer of each, (C,) or (C, D); live.
        sharding: number of TorchRec's way of sharding that the table is in.
    """

    spec: TableSpec
    rows: Span
    tensors: Mapping[str, Tensor]
    sharding: int
    widths: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.widths = [tensor[0].numel() for tensor in self.tensors.values()]

    def shapes(self) -> dict[str, Tensor]:
        """By tensor, what all rows here would take, on the meta device."""
        return {
            name: torch.empty((self.rows.size, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")
            for name, tensor in self.tensors.items()
        }

    def numbers(self, rows_UW: Floats) -> Numbers:
        """By tensor, each shaped as that is."""
        parts = np.split(rows_UW, np.cumsum(self.widths)[:-1], axis=1)
        return {
            name: torch.from_numpy(np.ascontiguousarray(part)).reshape(-1, *tensor.shape[1:])
            for (name, tensor), part in zip(self.tensors.items(), parts, strict=True)
        }


class OffloadedTables:
    """The shards of this rank whose kernels hold slots.

    Args:
        shards: they.
        beyond: where their rows lie.
        seed: of the tables' initial weights.

    Attributes:
        note: what the user should know of how rows are read; empty where there is nothing.
    """

    def __init__(self, shards: Sequence[CachedTable], beyond: OffloadFolder, seed: int) -> None:
        self._shards = list(shards)
        sizes = [(shard.spec.name, shard.rows.size, sum(shard.widths)) for shard in shards]
        check_room(beyond.folder, sizes)
        self._transfers, why = open_transfers(beyond.way)
        self.note = "" if not why or beyond.way == "threads" else f"rows on disk are read by threads: {why}"
        with contextlib.ExitStack() as stack:
            stack.callback(self._transfers.close)
            self._stores = [
                stack.enter_context(contextlib.closing(self._store(s, beyond, seed, self._transfers))) for s in shards
            ]
            caches = [
                RowCache(store, [tensor.detach().numpy() for tensor in shard.tensors.values()], shard.spec.name)
                for shard, store in zip(shards, self._stores, strict=True)
            ]
            if not all(store.direct for store in self._stores):
                self.note = "; ".join([*[self.note] * bool(self.note), f"{beyond.folder}: {_CACHED}"])
            self.ahead = Prefetcher(caches)
            stack.callback(self.ahead.close)
            self._open = stack.pop_all()
        self._waiting: deque[Line] = deque()
        self._training: list[PrefetchTicket] = []

    @property
    def caches(self) -> list[RowCache]:
        """Of the shards, in their order."""
        return self.ahead.caches

    def rows(self) -> list[CachedRows]:
        """Of each shard, as a checkpoint sees them."""
        pairs = zip(self._shards, self.caches, strict=True)
        return [CachedRows(shard, cache, self.ahead) for shard, cache in pairs]

    def announce(self, ids: Sequence[KeyedJaggedTensor], *, updates: bool) -> Line:
        """A batch is coming; its rows are brought from now on, behind those announced before.

        One that is not trained on comes out of turn, in the middle of a training: what waits is announced again behind
        it, as its rows might not fit beside theirs.
        """
        line = Line(ids, [_ranges(shard.spec, ids[shard.sharding]) for shard in self._shards], updates)
        if updates:
            self._waiting.append(line)
            self._announce_waiting()
        else:
            for other in self._waiting:
                self._recall(other)
            self._announce(line)
        return line

    def placed(self, line: Line) -> list[KeyedJaggedTensor]:
        """The ids of a batch whose turn has come, those of these shards replaced by slots, where their rows are until
        :meth:`over`."""
        if line.updates:
            assert self._waiting[0] is line, "another batch's turn"
            self._announce_waiting()
            self._waiting.popleft()
        assert line.ticket is not None
        self._training.append(line.ticket)  # over in any case, be it interrupted while it waits
        try:
            slots = self.ahead.slots(line.ticket)
        except TooManyRows:  # it is given up, and those that were on their way are not
            self.over()
            raise
        values = {number: line.ids[number].values().clone() for number in {each.sharding for each in self._shards}}
        for shard, ranges, slots_L in zip(self._shards, line.ranges, slots, strict=True):
            first = 0
            for begin, end in ranges:
                values[shard.sharding][begin:end] = torch.from_numpy(slots_L[first : first + end - begin])
                first += end - begin
        return [
            KeyedJaggedTensor(keys=ids.keys(), values=values[number], lengths=ids.lengths(), stride=ids.stride())
            if number in values
            else ids
            for number, ids in enumerate(line.ids)
        ]

    def over(self) -> None:
        """The batches whose turn it was were looked up, and their rows updated."""
        for ticket in self._training:
            self.ahead.done(ticket)
        self._training.clear()

    def drop(self, line: Line) -> None:
        """The batch's turn will not come."""
        if line in self._waiting:
            self._waiting.remove(line)
        self._recall(line)

    def moved(self) -> dict[str, float]:
        """What was moved so far.

        ``lookups``, of which ``hits`` found their rows in slots; rows ``missed``, distinct ones batch by batch;
        ``reads`` and ``writes`` of the disk with their bytes; seconds that training ``waited_s`` for rows and the
        disk ``worked_s``.
        """
        if not self._shards:
            return {}
        found: dict[str, float] = defaultdict(float)
        for cache, store in zip(self.caches, self._stores, strict=True):
            found["lookups"] += cache.hits.ids
            found["hits"] += cache.hits.here
            found["missed"] += cache.hits.missed
            for name in ("reads", "writes", "read_bytes", "written_bytes"):
                found[name] += getattr(store.traffic, name)
        return {**found, "waited_s": self.ahead.waited_s, "worked_s": self._transfers.worked_s}

    def close(self) -> None:
        """Delete the rows on disk: what lasts is in checkpoints."""
        self._open.close()

    @staticmethod
    def _store(shard: CachedTable, beyond: OffloadFolder, seed: int, transfers: TransferThread) -> LogRows:
        name, width, initial = shard.spec.name, sum(shard.widths), _initial(shard, seed)
        rows = shard.rows
        return LogRows(beyond.folder, name, rows.size, width, initial, transfers, first=rows.first)

    def _announce_waiting(self) -> None:
        """In their order, which is that of their turns."""
        for line in self._waiting:
            if line.ticket is None:
                self._announce(line)

    def _announce(self, line: Line) -> None:
        ids: list[Ints] = []
        for shard, ranges in zip(self._shards, line.ranges, strict=True):
            values_L = line.ids[shard.sharding].values().numpy()
            parts = [values_L[begin:end] for begin, end in ranges]
            ids.append(np.concatenate(parts or [_NONE]).astype(np.int64, copy=False))
        line.ticket = self.ahead.announce(ids, updates=line.updates)

    def _recall(self, line: Line) -> None:
        if line.ticket is not None:
            self.ahead.done(line.ticket, dropped=True)
            line.ticket = None


class CachedRows:
    """The rows of one shard as a checkpoint sees them (:class:`~ziggurat.embeddings.copy_on_write.RowSource`)."""

    def __init__(self, shard: CachedTable, cache: RowCache, ahead: Prefetcher) -> None:
        self._shard, self._cache, self._ahead = shard, cache, ahead
        self.rows, self.device = shard.rows.size, torch.device("cpu")

    def ids(self, slots_L: Tensor) -> Tensor:
        """The rows in these slots, which stay there meanwhile."""
        return torch.from_numpy(self._cache.ids(slots_L.numpy()))

    def kept(self, rows_U: Tensor) -> Numbers:
        """A copy of rows that a batch is about to update, and so are in slots."""
        return self._shard.numbers(self._cache.copied(rows_U.numpy()))

    def taken(self, rows_N: Tensor) -> Numbers:
        """A copy of ascending rows, wherever they lie."""
        ids_N = rows_N.numpy()
        return self._shard.numbers(self._ahead.between(lambda: self._cache.rows(ids_N)))

    def sinks(self) -> dict[str, RowSink]:
        """By tensor, what replaces rows, as a restore does between two batches."""
        into, first, found = _Replaced(self._shard, self._cache, self._ahead), 0, dict[str, RowSink]()
        for name, width in zip(self._shard.tensors, self._shard.widths, strict=True):
            found[name] = _Column(into, first)
            first += width
        return found


class _Replaced:
    """Rows that are being replaced, tensor by tensor: kept until all of their numbers are here."""

    def __init__(self, shard: CachedTable, cache: RowCache, ahead: Prefetcher) -> None:
        self._cache, self._ahead, self._width = cache, ahead, sum(shard.widths)
        self._ids_U = _NONE
        self._rows_UW = np.zeros((0, self._width), np.float32)
        self._have_W = np.zeros(self._width, np.bool_)

    def put(self, ids_U: Ints, first: int, numbers: Floats) -> None:
        columns = slice(first, first + numbers.shape[1])
        if self._have_W[columns].any() or not np.array_equal(ids_U, self._ids_U):
            self.settle()
        if not self._have_W.any():
            self._ids_U, self._rows_UW = ids_U, np.empty((len(ids_U), self._width), np.float32)
        self._rows_UW[:, columns] = numbers
        self._have_W[columns] = True
        if self._have_W.all():
            self.settle()

    def settle(self) -> None:
        if not self._have_W.any():
            return
        order = np.argsort(self._ids_U)
        ids_U, rows_UW, have_W = self._ids_U[order], self._rows_UW[order], self._have_W.copy()
        self._have_W[:] = False
        if not have_W.all():
            rows_UW[:, ~have_W] = self._ahead.between(lambda: self._cache.rows(ids_U))[:, ~have_W]
        self._ahead.between(lambda: self._cache.put(ids_U, rows_UW))


@dataclass(frozen=True, slots=True)
class _Column:
    """The :class:`~ziggurat.parallel.tensor_slices.RowSink` of one tensor: its row values from ``first`` on."""

    into: _Replaced
    first: int

    def put(self, rows_L: Tensor, first_column: int, numbers: Tensor) -> None:
        if len(rows_L):
            self.into.put(rows_L.numpy(), self.first + first_column, numbers.reshape(len(rows_L), -1).numpy())

    def settle(self) -> None:
        self.into.settle()


_NONE: Ints = np.zeros(0, np.int64)
_CACHED = "its file system cannot pass by the page cache, which takes memory beside that of the rows"


def _ranges(spec: TableSpec, ids: KeyedJaggedTensor) -> list[tuple[int, int]]:
    """Where the ids of the table's keys lie among all."""
    keys = set(spec.keys)
    return [place for key, place in zip(ids.keys(), pairwise(ids.offset_per_key()), strict=True) if key in keys]


def _initial(shard: CachedTable, seed: int) -> Initial:
    """Weights by the seed, states zero."""
    spec, states = shard.spec, sum(shard.widths[1:])

    def rows(ids_U: Ints) -> Floats:
        found = initial_rows(shard.rows.first + ids_U, spec.name, spec.init_std, seed, spec.dim)
        return np.concatenate([found, np.zeros((len(ids_U), states), np.float32)], axis=1)

    return rows
