"""Rows as they were at one moment, copied while they are being updated.

What has to stop for the moment are the updates, for as long as it takes to copy the marks of the rows, one byte each.
The rows are copied afterwards by a thread of their own, and an update that gets to one of them first leaves behind what
it was. The copy does not hold up training: it looks afterwards which of its rows an update has got to meanwhile, and
takes what is kept of these instead.

On CUDA the bytes lie on the tensors' device, and what an update leaves behind waits there for the next
:meth:`PendingSnapshot.take`. No machine of this project's tests has had a GPU: that part is untested.

Shape legend: R rows of a shard, L ids, U distinct rows, N rows that are handed out together.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

Since = Literal["last", "base"]
"""The last checkpoint, or the last full one, on which others build."""
Chosen = Literal["last", "base", "all"]
"""Rows that have changed since then, or all."""

LAST, BASE = 1, 2
"""Bits of a row's byte: it has changed since then."""
_LIVE, _KEPT = 1, 2
"""A row of a snapshot, not handed out yet, that is what it was; or is not, and what it was is kept."""
_WINDOW = 1 << 14
"""Bytes, at least, that are searched together for rows to hand out."""
_PARTS = 64
"""Of what is kept; each is looked at whenever rows are handed out, so more are made one."""

Numbers = dict[str, Tensor]
"""Name of a tensor -> some of its rows."""


class RowSource(Protocol):
    """Where the rows of a shard are.

    Attributes:
        rows: how many.
        device: of the marks.
    """

    rows: int
    device: torch.device

    def kept(self, rows_U: Tensor) -> Numbers:
        """A copy of rows that are about to be updated, by whoever updates them, on their device."""
        ...

    def taken(self, rows_N: Tensor) -> Numbers:
        """A copy of ascending rows, at least one, on the CPU; other threads may update them meanwhile."""
        ...


class InMemoryRows:
    """Rows that lie in tensors, as :class:`RowSource`.

    Args:
        tensors: "" -> the weights, name -> a state; live, all of as many rows.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        weight = tensors[""]
        assert all(tensor.shape[:1] == weight.shape[:1] for tensor in tensors.values()), list(tensors)
        self._tensors = tensors
        self.rows, self.device = len(weight), weight.device

    def kept(self, rows_U: Tensor) -> Numbers:
        return {name: tensor.index_select(0, rows_U) for name, tensor in self._tensors.items()}

    def taken(self, rows_N: Tensor) -> Numbers:
        return {name: _rows_of(tensor, rows_N) for name, tensor in self._tensors.items()}


class PendingSnapshot:
    """A snapshot whose rows are being copied.

    What is kept of updated rows needs memory until their turn comes, as much as the snapshot at most.

    Args:
        source: of all rows, live.
        marks_R: which rows have changed.
        rows: that the snapshot is of.

    Attributes:
        before_R: the marks when it began.
        over: nothing is handed out any more.
    """

    def __init__(self, source: RowSource, marks_R: Tensor, rows: Chosen) -> None:
        self.before_R, self.over = marks_R.clone(), False
        self._source = source
        self._of: Chosen = rows
        self._left_R = self._wanted()
        self._next = 0
        self._lock = threading.Lock()
        self._new: list[tuple[Tensor, Numbers]] = []  # kept by training, not seen by take yet; under the lock
        self._kept: list[tuple[Tensor, Numbers]] = []  # the same, on the CPU, rows ascending in each; take's own

    @cached_property
    def rows(self) -> int:
        """How many rows the snapshot has."""
        return int(torch.count_nonzero(self._wanted()))

    def take(self, most: int) -> tuple[Tensor, Numbers] | None:
        """Up to ``most`` rows that were not handed out yet; they ascend, from call to call too. For one thread.

        Returns:
            rows_N, int64, and of each tensor what these rows of it were when the snapshot began, (N, ...), all on the
            CPU; None when there are no more.
        """
        assert most > 0, most
        if self.over:
            return None
        rows_N = self._following(most)
        if not len(rows_N):
            self.drop()
            return None
        numbers = self._source.taken(rows_N)
        with self._lock:  # what was updated during the copy, perhaps in part, is kept by now
            if self.over:
                return None
            store(self._left_R, rows_N, 0)
            new, self._new = self._new, []
        self._kept += [(rows_U.cpu(), {name: rows.cpu() for name, rows in kept.items()}) for rows_U, kept in new]
        rows_N = rows_N.cpu()
        self._put_kept(rows_N, numbers)
        return rows_N, numbers

    def drop(self) -> None:
        """Nothing more is wanted."""
        with self._lock:
            self.over = True
            self._new = []

    def keep(self, ids_L: Tensor) -> None:
        """Copy those of these rows that were not handed out yet: they are about to be updated."""
        with self._lock:
            self._keep(_where(self._left_R, ids_L, _LIVE).unique())

    def keep_all(self) -> None:
        """Copy all rows that were not handed out yet."""
        with self._lock:
            self._keep((self._left_R == _LIVE).nonzero().squeeze(1))

    def _keep(self, rows_U: Tensor) -> None:
        if len(rows_U) and not self.over:
            self._new.append((rows_U, self._source.kept(rows_U)))
            store(self._left_R, rows_U, _KEPT)

    def _wanted(self) -> Tensor:
        """(R,) _LIVE where a row is one of the snapshot's, else 0."""
        return torch.full_like(self.before_R, _LIVE) if self._of == "all" else changed(self.before_R, self._of)

    def _following(self, most: int) -> Tensor:
        """The next rows that are left. An update at the same time makes live ones kept ones; both are left."""
        found = [torch.empty(0, dtype=torch.int64, device=self._left_R.device)]
        while most and self._next < len(self._left_R):
            window = self._left_R[self._next : self._next + max(most, _WINDOW)]
            rows = window.nonzero().squeeze(1)[:most] + self._next
            most -= len(rows)
            self._next = self._next + len(window) if most else int(rows[-1]) + 1
            found.append(rows)
        return torch.cat(found)

    def _put_kept(self, rows_N: Tensor, numbers: Numbers) -> None:
        """Put what is kept of these rows in their place. Those before them had their turn: what is kept begins here."""
        if len(self._kept) > _PARTS:
            rows_U, order = torch.cat([rows for rows, _ in self._kept]).sort()
            self._kept = [
                (rows_U, {name: torch.cat([kept[name] for _, kept in self._kept])[order] for name in numbers})
            ]
        rest: list[tuple[Tensor, Numbers]] = []
        for rows_U, kept in self._kept:
            end = int(torch.searchsorted(rows_U, rows_N[-1], right=True))
            places = torch.searchsorted(rows_N, rows_U[:end])
            for name, tensor in numbers.items():
                tensor[places] = kept[name][:end]
            if end < len(rows_U):
                rest.append((rows_U[end:], {name: tensor[end:] for name, tensor in kept.items()}))
        self._kept = rest


def changed(marks_R: Tensor, since: Since) -> Tensor:
    """(R,) 1 where a row has changed since then, else 0."""
    return marks_R & LAST if since == "last" else (marks_R & BASE).bitwise_right_shift_(1)


def store(bytes_R: Tensor, rows_L: Tensor, value: int) -> None:
    """``bytes_R[rows_L] = value``; numpy needs half of torch's time, or less."""
    if bytes_R.is_cuda:
        bytes_R.index_fill_(0, rows_L.long(), value)
    else:
        bytes_R.numpy()[rows_L.numpy()] = value


def _where(bytes_R: Tensor, rows_L: Tensor, value: int) -> Tensor:
    """Those of ``rows_L`` whose byte is ``value``."""
    if bytes_R.is_cuda:
        return rows_L[bytes_R[rows_L] == value].long()
    rows = rows_L.numpy()
    return torch.from_numpy(rows[bytes_R.numpy()[rows] == value]).long()


def _rows_of(tensor: Tensor, rows_N: Tensor) -> Tensor:
    """A copy of ascending rows, on the CPU."""
    first, last = int(rows_N[0]), int(rows_N[-1])
    if last - first + 1 == len(rows_N):
        return tensor[first : last + 1].to("cpu", copy=True)
    return tensor.index_select(0, rows_N).cpu()
