"""Tracks the dirty rows of table shards: those that have changed since a checkpoint.

A delta checkpoint of a large table writes only these (Eisenman et al. 2022, "Check-N-Run", section 4.1; it uses one bit
per row, here it is a byte, which takes a single store). Rows are marked just before they are updated, not when they are
looked up. So evaluation marks nothing, and no row is lost if a snapshot begins while ids are in flight, or between a
lookup and its backward pass. A row whose gradient is zero may be marked, too.

Shape legend: R rows of a shard, L ids, F features, B rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchrec.distributed.batched_embedding_kernel import BatchedFusedEmbeddingBag

from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.copy_on_write import (
    BASE,
    LAST,
    InMemoryRows,
    PendingSnapshot,
    RowSelection,
    RowSource,
    Since,
    changed,
    store,
)
from ziggurat.parallel.tensor_slices import RowSink, TensorSlice


class DirtyRows:
    """The dirty rows of a shard, one byte per row, and snapshots of the rows as of the moment a snapshot began.

    Not thread-safe: call all methods between two updates, from the thread that makes the updates or while it waits.
    Only :meth:`~ziggurat.embeddings.copy_on_write.PendingSnapshot.take` of a snapshot may run concurrently.

    Args:
        tensors: "" -> the weights, name -> an optimizer state; live, all with the same number of rows. If ``source``
            holds the rows, tensors of their shapes on the meta device.
        source: what holds the rows; by default ``tensors``.
        settle: called before marks are read: marks the rows of updates whose marking was deferred.

    Attributes:
        tensors: the same tensors, detached.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        source: RowSource | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._source, self._settle = source or InMemoryRows(self.tensors), settle
        self._marks_R = torch.zeros(self._source.rows, dtype=torch.uint8, device=self._source.device)
        self._pending: PendingSnapshot | None = None

    @property
    def can_defer(self) -> bool:
        """Whether rows may be updated now and marked later: on the CPU, while no snapshot is pending."""
        return (self._pending is None or self._pending.finished) and not self._marks_R.is_cuda

    def mark_deferred(self, batches: Iterable[npt.NDArray[np.integer[Any]]]) -> None:
        """Marks rows of updates that were deferred (:attr:`can_defer`); ids may repeat."""
        marks_R = self._marks_R.numpy()
        for ids_L in batches:
            marks_R[ids_L] = LAST | BASE

    def touch(self, ids_L: Tensor) -> None:
        """Marks rows that are about to be updated; ids may repeat."""
        pending = self._unfinished()
        if pending is not None:
            pending.keep(ids_L)
        store(self._marks_R, ids_L, LAST | BASE)

    def touch_all(self) -> None:
        """Marks all rows, as all are about to be updated."""
        pending = self._unfinished()
        if pending is not None:
            pending.keep_all()
        self._marks_R.fill_(LAST | BASE)

    def count_changed(self, since: Since) -> int:
        """Returns the number of rows that have changed."""
        self._settle()
        return int(torch.count_nonzero(changed(self._marks_R, since)))

    def mark(self, rows: Tensor, since: Since) -> None:
        """Marks rows that differ from the last checkpoint, or from the last full one; used after a restore.

        A row that differs from the last checkpoint is taken to differ from the last full one, too.
        """
        self._settle()
        self._marks_R[rows.to(self._marks_R.device, torch.int64)] |= LAST | BASE if since == "last" else BASE

    def begin_snapshot(self, rows: RowSelection, clears: Since) -> PendingSnapshot:
        """Begins a snapshot; only one may be pending at a time.

        Args:
            rows: the rows to copy: those changed since the last checkpoint, since the last full one, or all.
            clears: the marks to clear: ``last``, those since the last checkpoint; ``base``, also those since the last
                full one.
        """
        self._settle()
        assert self._unfinished() is None, "a snapshot is pending: take all of its rows, or drop it"
        self._pending = PendingSnapshot(self._source, self._marks_R, rows)
        self._marks_R.bitwise_and_(BASE if clears == "last" else 0)
        return self._pending

    def abort_snapshot(self, pending: PendingSnapshot) -> None:
        """Abandons a snapshot: rows that were dirty when it began are dirty again, besides those changed since."""
        self._settle()
        pending.drop()
        self._marks_R |= pending.marks_before_R

    def _unfinished(self) -> PendingSnapshot | None:
        if self._pending is not None and self._pending.finished:
            self._pending = None
        return self._pending


@dataclass(frozen=True, slots=True)
class TrackedShard:
    """A rank's shard of a table and its dirty rows; the tensors are live.

    Attributes:
        table: the table's name.
        spec: the whole table.
        weight: the rows of this shard; with their ids if they are stored in another order.
        states: name (without the table) -> optimizer state with values for each row.
        dirty: which of these rows have changed.
    """

    table: str
    spec: TableSpec
    weight: TensorSlice
    states: dict[str, TensorSlice]
    dirty: DirtyRows

    @classmethod
    def of(cls, spec: TableSpec, at: tuple[int, int], dirty: DirtyRows) -> TrackedShard:
        """Returns a shard of the tensors that ``dirty`` tracks; ``at`` is their first row and column in the table."""

        def tensor_slice(name: str, tensor: Tensor) -> TensorSlice:
            return TensorSlice(name, tensor, (spec.rows, spec.dim)[: tensor.ndim], at[: tensor.ndim])

        weight, states = dirty.tensors[""], {name: tensor for name, tensor in dirty.tensors.items() if name}
        tensor_slices = {name: tensor_slice(f"{spec.name}/{name}", state) for name, state in states.items()}
        return cls(spec.name, spec, tensor_slice(spec.name, weight), tensor_slices, dirty)

    def with_sinks(self, sinks: Mapping[str, RowSink]) -> TrackedShard:
        """Returns the shard with sinks, which replace rows on a restore, attached to its tensor slices."""
        states = {name: replace(tensor_slice, sink=sinks[name]) for name, tensor_slice in self.states.items()}
        return replace(self, weight=replace(self.weight, sink=sinks[""]), states=states)

    def with_row_ids(self, attach: Callable[[TensorSlice], TensorSlice]) -> TrackedShard:
        """Returns the shard with ``attach``, which attaches the ids of rows, applied to its tensor slices."""
        states = {name: attach(state) for name, state in self.states.items()}
        return replace(self, weight=attach(self.weight), states=states)


@dataclass(frozen=True, slots=True)
class OffloadedShard:
    """A shard of which a kernel holds some rows in slots.

    Attributes:
        shapes: the tensors of all rows, on the meta device, as :class:`DirtyRows` takes them.
        source: what holds the rows.
        ids: slots -> the rows in them.
        sinks: tensor name -> the sink that replaces rows of it.
    """

    shapes: Mapping[str, Tensor]
    source: RowSource
    ids: Callable[[Tensor], Tensor]
    sinks: Mapping[str, RowSink]


def tensors_of(kernel: BatchedFusedEmbeddingBag) -> list[dict[str, Tensor]]:
    """Returns for each table in an FBGEMM kernel: "" -> its weights, name -> an optimizer state; live, not copies."""
    weights: list[Tensor] = kernel.emb_module.split_embedding_weights()
    states: list[dict[str, Tensor]] = kernel.emb_module.get_optimizer_state() or [{} for _ in weights]
    return [{"": weight, **each} for weight, each in zip(weights, states, strict=True)]


def track_kernel(
    kernel: BatchedFusedEmbeddingBag, offloaded: Mapping[int, OffloadedShard] = MappingProxyType({})
) -> list[DirtyRows]:
    """Tracks the dirty rows of the tables in an FBGEMM kernel.

    A hook marks rows when the backward pass reaches the kernel's output, before the kernel's own backward updates them.
    While no snapshot is pending, it may defer this (:class:`_DeferredMarks`).

    Args:
        kernel: the kernel of some tables.
        offloaded: index of a table in the kernel -> its shard, for tables of which the kernel holds slots.

    Returns:
        The dirty rows of each table in the kernel.
    """
    deferred = _DeferredMarks()
    for number, tensors in enumerate(tensors_of(kernel)):
        if number in offloaded:
            deferred.tables.append(DirtyRows(offloaded[number].shapes, offloaded[number].source))
        else:
            deferred.tables.append(DirtyRows(tensors, settle=deferred.mark))
    features = list(accumulate((table.num_features() for table in kernel.config.embedding_tables), initial=0))

    def touch(ids_L: Tensor, offsets: Tensor) -> None:
        """Marks the looked-up rows; ``offsets`` (F·B + 1,) say where each bag starts, grouped by feature."""
        bags = (len(offsets) - 1) // features[-1]
        bounds: list[int] = offsets[[first * bags for first in features]].tolist()
        if offloaded:
            for number, (each, (begin, end)) in enumerate(zip(deferred.tables, pairwise(bounds), strict=True)):
                rows_L = ids_L[begin:end]
                each.touch(offloaded[number].ids(rows_L) if number in offloaded else rows_L)
        else:
            deferred.add(ids_L, bounds)

    def looked_up(module: Any, args: Any, arguments: dict[str, Tensor], output: Tensor) -> None:
        ids_L, offsets = arguments["indices"], arguments["offsets"]
        if output.requires_grad:
            output.register_hook(lambda _: touch(ids_L, offsets))

    kernel.emb_module.register_forward_hook(looked_up, with_kwargs=True)
    return deferred.tables


class _DeferredMarks:
    """Marks the rows of several batches at once, table by table; on the CPU, while no snapshot is pending.

    The bytes of one table stay in the processor's cache while the ids of all these batches are stored, which takes less
    than half the time of going through all tables for every batch. Until marks are read, or ids are many, a batch's ids
    are kept.

    Attributes:
        tables: the dirty rows of each table.
    """

    _MOST_IDS = 2**20
    """Ids that are kept before they are marked; 8 MiB."""

    def __init__(self) -> None:
        self.tables: list[DirtyRows] = []
        self._kept: list[tuple[npt.NDArray[np.integer[Any]], list[int]]] = []
        self._ids = 0

    def add(self, ids_L: Tensor, bounds: list[int]) -> None:
        """Takes the rows that are about to be updated: table t's are ``ids_L[bounds[t]:bounds[t + 1]]``."""
        if not all(table.can_defer for table in self.tables):
            for table, (begin, end) in zip(self.tables, pairwise(bounds), strict=True):
                table.touch(ids_L[begin:end])
            return
        self._kept.append((ids_L.numpy(), bounds))
        self._ids += len(ids_L)
        if self._ids >= self._MOST_IDS:
            self.mark()

    def mark(self) -> None:
        """Marks all rows kept so far."""
        kept, self._kept, self._ids = self._kept, [], 0
        if kept:
            for number, table in enumerate(self.tables):
                table.mark_deferred(ids_L[bounds[number] : bounds[number + 1]] for ids_L, bounds in kept)
