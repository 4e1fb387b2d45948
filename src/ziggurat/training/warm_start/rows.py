"""Copies rows of another run's tables to the rows of the same values in this run.

A rank reads only rows that it has a place for, and each checkpoint file once, straight into its shard. The rows first
fill the start of the shard, are then moved to their places, the last one first, and rows that were overwritten are
drawn again. So no table needs a second copy in memory. Rows that are not stored in a tensor
(:class:`~ziggurat.parallel.tensor_slices.RowSink`) are written to their places at once.

Shape legend: L rows of a shard, U of them that are read, N of them that are drawn again, D columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.features.encoders.key_lookup import ABSENT
from ziggurat.features.matching import RowMatch, Rows
from ziggurat.parallel.tensor_slices import RowSink, TensorSlice

CHUNK_BYTES = 16 * 2**20
"""Bytes of rows that are moved at once."""


@dataclass(frozen=True, slots=True)
class RowTransfer:
    """The transfer that fills a rank's slice of one tensor of a table.

    Attributes:
        group, name: group and name of the tensor in the checkpoint.
        rows: number of rows of the tensor in the checkpoint.
        tensor_slice: this rank's live slice of the tensor.
        drawn: returns the initial values of rows, given their ids (N,); None for zeros.
    """

    group: str
    name: str
    rows: int
    tensor_slice: TensorSlice
    drawn: Callable[[Tensor], Tensor] | None = None


@torch.no_grad()
def take_rows(saved: CheckpointReader, tables: Sequence[tuple[Sequence[RowTransfer], RowMatch]]) -> None:
    """Copies the matched rows of each table into all its transfers' slices; other rows keep their values.

    Raises:
        RunFolderError: a file is damaged; some rows may have been written by then.
    """
    tensor_slices: dict[str, list[TensorSlice]] = defaultdict(list)
    moves: list[tuple[RowTransfer, _Places]] = []
    for sources, match in tables:
        places_of: dict[tuple[int, int], _Places] = {}
        for source in sources:
            shard = (source.tensor_slice.first[0], source.tensor_slice.tensor.shape[0])
            if source.tensor_slice.sink is not None and match.rows_R is not None:
                tensor_slices[source.group] += _slice_for_sink(source, match)
                continue
            if match.rows_R is None and source.tensor_slice.rows is None:
                tensor_slices[source.group].append(
                    _gapless(source, shard[0], max(0, min(shard[1], match.matched - shard[0])))
                )
                continue
            if shard not in places_of:
                places_of[shard] = _Places.of(source.tensor_slice, match)
            places = places_of[shard]
            if len(places.read_U):
                tensor_slices[source.group].append(_read_into(source, places.read_U))
                moves.append((source, places))
    saved.fill(tensor_slices)
    for source, places in moves:
        _spread(source.tensor_slice.tensor, places)
        _draw(source, places)


def _slice_for_sink(source: RowTransfer, match: RowMatch) -> list[TensorSlice]:
    """Returns one tensor slice of the checkpoint's rows that belong in this shard; an empty list if there are none."""
    live, sink = source.tensor_slice, source.tensor_slice.sink
    assert sink is not None
    assert live.rows is None
    first, size = live.first[0], live.tensor.shape[0]
    rows_L = match.of(np.arange(first, first + size))
    found = np.flatnonzero(rows_L != ABSENT)
    if not len(found):
        return []
    found = found[np.argsort(rows_L[found], kind="stable")]
    read_U, begin_U = np.unique(rows_L[found], return_index=True)
    tensor = torch.empty((len(read_U), *live.tensor.shape[1:]), dtype=live.tensor.dtype, device="meta")
    shape, start = (source.rows, *live.shape[1:]), (0, *live.first[1:])
    placed = _FanOutSink(sink, found, np.append(begin_U, len(found)))
    return [TensorSlice(source.name, tensor, shape, start, torch.from_numpy(read_U), placed)]


@dataclass(frozen=True, slots=True)
class _FanOutSink:
    """A sink that writes each checkpoint row to all rows of another sink that start from it.

    Attributes:
        sink: the sink to write to.
        at_N: its rows, grouped by the checkpoint row that they start from.
        begin_U: where the group of each checkpoint row begins in ``at_N``, and the end of the last group.
    """

    sink: RowSink
    at_N: Rows
    begin_U: Rows

    def put(self, rows_L: Tensor, first_column: int, values: Tensor) -> None:
        places_L = rows_L.numpy()
        times_L = self.begin_U[places_L + 1] - self.begin_U[places_L]
        which = np.repeat(np.arange(len(places_L)), times_L)
        within = np.arange(len(which)) - np.repeat(np.cumsum(times_L) - times_L, times_L)
        at = self.at_N[self.begin_U[places_L[which]] + within]
        self.sink.put(torch.from_numpy(at), first_column, values[torch.from_numpy(which)])

    def flush(self) -> None:
        self.sink.flush()


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the checkpoint's rows in a shard.

    Attributes:
        read_U: distinct rows of the checkpoint.
        at_U: place of each in the shard, ascending, so that ``at_U[i] >= i``.
        again, of_again: further places, and for each the place of the row to copy there.
        lost_N: places among the first U that no row goes to, so that they must be drawn again.
        ids_N: table rows at these places.
    """

    read_U: Rows
    at_U: Rows
    again: Rows
    of_again: Rows
    lost_N: Rows
    ids_N: Rows

    @classmethod
    def of(cls, tensor_slice: TensorSlice, match: RowMatch) -> _Places:
        first, size = tensor_slice.first[0], tensor_slice.tensor.shape[0]
        ids_L = (
            np.arange(first, first + size) if tensor_slice.rows is None else tensor_slice.rows.numpy().astype(np.int64)
        )
        rows_L = match.of(ids_L)
        found = np.flatnonzero(rows_L != ABSENT)
        distinct, earliest = np.unique(rows_L[found], return_index=True)
        at_U = np.sort(found[earliest])
        again = np.setdiff1d(found, at_U, assume_unique=True)
        of_again = found[earliest[np.searchsorted(distinct, rows_L[again])]]
        lost_N = np.flatnonzero(rows_L[: len(at_U)] == ABSENT)
        return cls(rows_L[at_U], at_U, again, of_again, lost_N, ids_L[lost_N])


def _gapless(source: RowTransfer, first: int, count: int) -> TensorSlice:
    """Returns the shard's first ``count`` rows as a slice to be filled with the checkpoint's rows from ``first`` on."""
    live = source.tensor_slice
    shape, start = (source.rows, *live.shape[1:]), (first, *live.first[1:])
    return replace(live, name=source.name, tensor=live.tensor[:count], shape=shape, first=start, rows=None)


def _read_into(source: RowTransfer, read_U: Rows) -> TensorSlice:
    """Returns the shard's first U rows as a slice to be filled with the checkpoint's rows ``read_U``."""
    first, count = int(read_U[0]), len(read_U)
    if bool((np.diff(read_U) == 1).all()):
        return _gapless(source, first, count)
    return replace(_gapless(source, 0, count), rows=torch.from_numpy(read_U))


def _spread(tensor: Tensor, places: _Places) -> None:
    """Moves the first U rows to their places, last row first.

    No row is overwritten before it is moved, because no place comes before the row that goes there.
    """
    at_U, most = places.at_U, _chunk(tensor)
    if int(at_U[-1]) >= len(at_U):
        for end in range(len(at_U), 0, -most):
            begin = max(0, end - most)
            tensor.index_copy_(0, _index(at_U[begin:end], tensor), tensor[begin:end].clone())
    if len(places.again):
        tensor[_index(places.again, tensor)] = tensor[_index(places.of_again, tensor)]


def _draw(source: RowTransfer, places: _Places) -> None:
    """Draws the overwritten rows again, with the values they had."""
    tensor, most = source.tensor_slice.tensor, _chunk(source.tensor_slice.tensor)
    order = np.argsort(places.ids_N)
    for begin in range(0, len(order), most):
        some = order[begin : begin + most]
        index = _index(places.lost_N[some], tensor)
        if source.drawn is None:
            tensor[index] = 0
        else:
            tensor[index] = source.drawn(torch.from_numpy(places.ids_N[some])).to(tensor.device)


def _chunk(tensor: Tensor) -> int:
    return max(1, CHUNK_BYTES // max(1, tensor[:1].nbytes))


def _index(rows: Rows, tensor: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(tensor.device)
