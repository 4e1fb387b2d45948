"""Which rows of a table's shards have changed since a checkpoint.

A checkpoint of a large table need not write more than these (Eisenman et al. 2022, "Check-N-Run", section 4.1; it has
one bit a row where we have a byte, which takes one store). Rows are marked just before they are updated, not where they
are looked up: evaluation marks nothing, and a snapshot may begin while ids are on their way, or between a lookup and
its backward pass, and no row is lost. A row whose gradient comes to zero may be marked as well.

Shape legend: R rows of a shard, L ids, F features, B rows of the global batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.batched_embedding_kernel import BatchedFusedEmbeddingBag

from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.copy_on_write import (
    BASE,
    LAST,
    Chosen,
    InMemoryRows,
    PendingSnapshot,
    RowSource,
    Since,
    changed,
    store,
)
from ziggurat.parallel.tensor_slices import RowSink, TensorSlice


class DirtyRows:
    """Which rows of a shard have changed, one byte a row; and the rows as they were when a snapshot of them began.

    Everything here is called between two updates, by whoever makes them or while he waits. The snapshot's
    :meth:`~ziggurat.embeddings.copy_on_write.PendingSnapshot.take` alone may run beside.

    Args:
        tensors: "" -> the weights, name -> a state of the optimizer; live, all of as many rows. Where the rows lie
            elsewhere, as they would be, on the meta device.
        source: where they lie; default: in ``tensors``.

    Attributes:
        tensors: the same.
    """

    def __init__(self, tensors: Mapping[str, Tensor], source: RowSource | None = None) -> None:
        self.tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        self._source = source or InMemoryRows(self.tensors)
        self._marks_R = torch.zeros(self._source.rows, dtype=torch.uint8, device=self._source.device)
        self._pending: PendingSnapshot | None = None

    def touch(self, ids_L: Tensor) -> None:
        """These rows, some of them repeatedly, are about to be updated."""
        pending = self._unfinished()
        if pending is not None:
            pending.keep(ids_L)
        store(self._marks_R, ids_L, LAST | BASE)

    def touch_all(self) -> None:
        """All rows are about to be updated."""
        pending = self._unfinished()
        if pending is not None:
            pending.keep_all()
        self._marks_R.fill_(LAST | BASE)

    def changed(self, since: Since) -> int:
        """How many rows have changed."""
        return int(torch.count_nonzero(changed(self._marks_R, since)))

    def mark(self, rows: Tensor, since: Since) -> None:
        """These rows are not what they are in the last checkpoint, or in the last full one; for a restore.

        What is not as in the last checkpoint is taken not to be as in the last full one either.
        """
        self._marks_R[rows.to(self._marks_R.device, torch.int64)] |= LAST | BASE if since == "last" else BASE

    def begin(self, rows: Chosen, clears: Since) -> PendingSnapshot:
        """Begin a snapshot, one at a time.

        Args:
            rows: that have changed since the last checkpoint, or since the last full one, or all.
            clears: ``last``: changes since the last checkpoint count anew from here on; ``base``: those since the last
                full one too.
        """
        assert self._unfinished() is None, "a snapshot is pending: take all of its rows, or drop it"
        self._pending = PendingSnapshot(self._source, self._marks_R, rows)
        self._marks_R.bitwise_and_(BASE if clears == "last" else 0)
        return self._pending

    def undo(self, pending: PendingSnapshot) -> None:
        """The snapshot came to nothing: what counted as changed before does so again, and what has changed since."""
        pending.drop()
        self._marks_R |= pending.before_R

    def _unfinished(self) -> PendingSnapshot | None:
        if self._pending is not None and self._pending.over:
            self._pending = None
        return self._pending


@dataclass(frozen=True, slots=True)
class TrackedShard:
    """What a rank holds of a table, live.

    Attributes:
        table: its name.
        spec: the whole table.
        weight: the rows here; where they lie in another order, it has their ids.
        states: name, without the table -> state of the optimizer with numbers for each row.
        marks: which of these rows have changed.
    """

    table: str
    spec: TableSpec
    weight: TensorSlice
    states: dict[str, TensorSlice]
    marks: DirtyRows

    @classmethod
    def of(cls, spec: TableSpec, at: tuple[int, int], marks: DirtyRows) -> TrackedShard:
        """Of the tensors that ``marks`` are of; ``at`` is their first row and column in the table."""

        def tensor_slice(name: str, tensor: Tensor) -> TensorSlice:
            return TensorSlice(name, tensor, (spec.rows, spec.dim)[: tensor.ndim], at[: tensor.ndim])

        weight, states = marks.tensors[""], {name: tensor for name, tensor in marks.tensors.items() if name}
        tensor_slices = {name: tensor_slice(f"{spec.name}/{name}", state) for name, state in states.items()}
        return cls(spec.name, spec, tensor_slice(spec.name, weight), tensor_slices, marks)

    def into(self, sinks: Mapping[str, RowSink]) -> TrackedShard:
        """With pieces that say what replaces rows."""
        states = {name: replace(tensor_slice, sink=sinks[name]) for name, tensor_slice in self.states.items()}
        return replace(self, weight=replace(self.weight, sink=sinks[""]), states=states)

    def in_order(self, placed: Callable[[TensorSlice], TensorSlice]) -> TrackedShard:
        """With pieces that know the ids of their rows."""
        states = {name: placed(state) for name, state in self.states.items()}
        return replace(self, weight=placed(self.weight), states=states)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Rows of which a kernel holds some in slots.

    Attributes:
        shapes: as :class:`DirtyRows`' tensors, on the meta device.
        source: where the rows lie.
        ids: slots -> the rows in them.
        sinks: by tensor, what replaces rows.
    """

    shapes: Mapping[str, Tensor]
    source: RowSource
    ids: Callable[[Tensor], Tensor]
    sinks: Mapping[str, RowSink]


def tensors_of(kernel: BatchedFusedEmbeddingBag) -> list[dict[str, Tensor]]:
    """Of each table in one of FBGEMM's kernels: "" -> its weights, name -> a state of the optimizer; live."""
    weights: list[Tensor] = kernel.emb_module.split_embedding_weights()
    states: list[dict[str, Tensor]] = kernel.emb_module.get_optimizer_state() or [{} for _ in weights]
    return [{"": weight, **each} for weight, each in zip(weights, states, strict=True)]


def marked(
    kernel: BatchedFusedEmbeddingBag, elsewhere: Mapping[int, Elsewhere] = MappingProxyType({})
) -> list[DirtyRows]:
    """Marks of the tables in one of FBGEMM's kernels; from now on it marks what it updates.

    That is when the backward pass comes to the rows that it gave, and before it goes on into the kernel.

    Args:
        kernel: of some tables.
        elsewhere: number of a table in it -> its rows, where the kernel holds slots.
    """
    marks = [
        DirtyRows(elsewhere[number].shapes, elsewhere[number].source) if number in elsewhere else DirtyRows(tensors)
        for number, tensors in enumerate(tensors_of(kernel))
    ]
    features = list(accumulate((table.num_features() for table in kernel.config.embedding_tables), initial=0))

    def touch(ids_L: Tensor, offsets: Tensor) -> None:
        """``offsets`` (F·B + 1,): where each bag begins, one feature's after the other's."""
        bags = (len(offsets) - 1) // features[-1]
        bounds: list[int] = offsets[[first * bags for first in features]].tolist()
        for number, (each, (begin, end)) in enumerate(zip(marks, pairwise(bounds), strict=True)):
            rows_L = ids_L[begin:end]
            each.touch(elsewhere[number].ids(rows_L) if number in elsewhere else rows_L)

    def looked_up(module: Any, args: Any, arguments: dict[str, Tensor], output: Tensor) -> None:
        ids_L, offsets = arguments["indices"], arguments["offsets"]
        if output.requires_grad:
            output.register_hook(lambda _: touch(ids_L, offsets))

    kernel.emb_module.register_forward_hook(looked_up, with_kwargs=True)
    return marks
