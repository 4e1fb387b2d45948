"""Copy-on-write snapshots: rows as of one moment, copied while training updates them.

Updates pause only while the marks of the rows are copied, one byte per row. A separate thread copies the rows
afterwards. An update that reaches a row before that thread first saves the row's old value. The thread does not block
training: after copying some rows it checks which of them were updated in the meantime, and uses their saved values
instead.

On CUDA the marks are on the tensors' device, and saved rows stay there until the next :meth:`PendingSnapshot.take`.
``tests/cuda`` tests that, and has run on one GPU (``docs/training.md``).

Shape legend: R rows of a shard, L ids, U distinct rows, N rows that are returned together.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

Since = Literal["last", "base"]
"""The reference checkpoint: the last one, or the last full one, on which deltas build."""
RowSelection = Literal["last", "base", "all"]
"""The rows of a snapshot: those changed since the reference checkpoint, or all."""

LAST, BASE = 1, 2
"""Bits of a row's mark: changed since the last checkpoint; changed since the last full one."""
_LIVE, _SAVED = 1, 2
"""States of a snapshot's row that was not returned yet: unchanged; or updated, with its old value saved."""
_WINDOW = 1 << 14
"""The least number of marks that are searched at a time for the next rows."""
_MOST_SAVED = 64
"""The most batches of saved rows; each is searched in every :meth:`PendingSnapshot.take`, so more are merged."""

RowTensors = dict[str, Tensor]
"""Tensor name -> some rows of that tensor."""


class RowSource(Protocol):
    """Access to the rows of a shard.

    Attributes:
        rows: the number of rows.
        device: the device of the marks.
    """

    rows: int
    device: torch.device

    def copy_before_update(self, rows_U: Tensor) -> RowTensors:
        """Returns a copy of rows on their device; called by the updating thread just before it updates them."""
        ...

    def copy_concurrently(self, rows_N: Tensor) -> RowTensors:
        """Returns a copy of ascending rows, at least one, on the CPU; other threads may update them during the call."""
        ...


class InMemoryRows:
    """A :class:`RowSource` of tensors in memory.

    Args:
        tensors: "" -> the weights, name -> an optimizer state; live, all with the same number of rows.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        weight = tensors[""]
        assert all(tensor.shape[:1] == weight.shape[:1] for tensor in tensors.values()), list(tensors)
        self._tensors = tensors
        self.rows, self.device = len(weight), weight.device

    def copy_before_update(self, rows_U: Tensor) -> RowTensors:
        return {name: tensor.index_select(0, rows_U) for name, tensor in self._tensors.items()}

    def copy_concurrently(self, rows_N: Tensor) -> RowTensors:
        return {name: _rows_of(tensor, rows_N) for name, tensor in self._tensors.items()}


class PendingSnapshot:
    """A snapshot whose rows are being copied.

    The saved values of updated rows take memory until they are returned, at most as much as the snapshot.

    Args:
        source: the live rows.
        marks_R: the marks of the rows that have changed.
        rows: the rows of the snapshot.

    Attributes:
        marks_before_R: the marks when the snapshot began.
        finished: whether all rows were returned or the snapshot was dropped.
    """

    def __init__(self, source: RowSource, marks_R: Tensor, rows: RowSelection) -> None:
        self.marks_before_R, self.finished = marks_R.clone(), False
        self._source = source
        self._selection: RowSelection = rows
        self._left_R = self._selected()
        self._next = 0
        self._lock = threading.Lock()
        self._newly_saved: list[
            tuple[Tensor, RowTensors]
        ] = []  # saved by training, not yet seen by take; guarded by the lock
        self._saved: list[
            tuple[Tensor, RowTensors]
        ] = []  # the same on the CPU, rows ascending in each; used by take only

    @cached_property
    def rows(self) -> int:
        """The number of rows in the snapshot."""
        return int(torch.count_nonzero(self._selected()))

    def take(self, most: int) -> tuple[Tensor, RowTensors] | None:
        """Returns up to ``most`` rows not returned before; they ascend, across calls too. For use by a single thread.

        Returns:
            rows_N, int64, and for each tensor the values (N, ...) of these rows when the snapshot began, all on the
            CPU; None if no rows are left.
        """
        assert most > 0, most
        if self.finished:
            return None
        rows_N = self._next_rows(most)
        if not len(rows_N):
            self.drop()
            return None
        numbers = self._source.copy_concurrently(rows_N)
        with self._lock:  # rows updated during the copy may be torn, but are saved by now
            if self.finished:
                return None
            store(self._left_R, rows_N, 0)
            new, self._newly_saved = self._newly_saved, []
        self._saved += [(rows_U.cpu(), {name: rows.cpu() for name, rows in kept.items()}) for rows_U, kept in new]
        rows_N = rows_N.cpu()
        self._put_saved(rows_N, numbers)
        return rows_N, numbers

    def drop(self) -> None:
        """Ends the snapshot; no more rows are returned."""
        with self._lock:
            self.finished = True
            self._newly_saved = []

    def keep(self, ids_L: Tensor) -> None:
        """Saves those of these rows that were not returned yet, as they are about to be updated."""
        with self._lock:
            self._keep(_rows_with(self._left_R, ids_L, _LIVE).unique())

    def keep_all(self) -> None:
        """Saves all rows that were not returned yet."""
        with self._lock:
            self._keep((self._left_R == _LIVE).nonzero().squeeze(1))

    def _keep(self, rows_U: Tensor) -> None:
        if len(rows_U) and not self.finished:
            self._newly_saved.append((rows_U, self._source.copy_before_update(rows_U)))
            store(self._left_R, rows_U, _SAVED)

    def _selected(self) -> Tensor:
        """Returns (R,): _LIVE for rows of the snapshot, else 0."""
        return (
            torch.full_like(self.marks_before_R, _LIVE)
            if self._selection == "all"
            else changed(self.marks_before_R, self._selection)
        )

    def _next_rows(self, most: int) -> Tensor:
        """Returns the next rows to copy. A concurrent update turns live rows into saved ones; both are non-zero."""
        found = [torch.empty(0, dtype=torch.int64, device=self._left_R.device)]
        while most and self._next < len(self._left_R):
            window = self._left_R[self._next : self._next + max(most, _WINDOW)]
            rows = window.nonzero().squeeze(1)[:most] + self._next
            most -= len(rows)
            self._next = self._next + len(window) if most else int(rows[-1]) + 1
            found.append(rows)
        return torch.cat(found)

    def _put_saved(self, rows_N: Tensor, numbers: RowTensors) -> None:
        """Replaces values by the saved ones of these rows. Earlier rows are done, so saved rows start with these."""
        if len(self._saved) > _MOST_SAVED:
            rows_U, order = torch.cat([rows for rows, _ in self._saved]).sort()
            self._saved = [
                (rows_U, {name: torch.cat([kept[name] for _, kept in self._saved])[order] for name in numbers})
            ]
        rest: list[tuple[Tensor, RowTensors]] = []
        for rows_U, kept in self._saved:
            end = int(torch.searchsorted(rows_U, rows_N[-1], right=True))
            places = torch.searchsorted(rows_N, rows_U[:end])
            for name, tensor in numbers.items():
                tensor[places] = kept[name][:end]
            if end < len(rows_U):
                rest.append((rows_U[end:], {name: tensor[end:] for name, tensor in kept.items()}))
        self._saved = rest


def changed(marks_R: Tensor, since: Since) -> Tensor:
    """Returns (R,): 1 for rows that have changed since the reference checkpoint, else 0."""
    return marks_R & LAST if since == "last" else (marks_R & BASE).bitwise_right_shift_(1)


def store(bytes_R: Tensor, rows_L: Tensor, value: int) -> None:
    """Sets ``bytes_R[rows_L] = value``; on the CPU by numpy, which takes at most half of torch's time."""
    if bytes_R.is_cuda:
        bytes_R.index_fill_(0, rows_L.long(), value)
    else:
        bytes_R.numpy()[rows_L.numpy()] = value


def _rows_with(bytes_R: Tensor, rows_L: Tensor, value: int) -> Tensor:
    """Returns those of ``rows_L`` whose byte is ``value``."""
    if bytes_R.is_cuda:
        return rows_L[bytes_R[rows_L] == value].long()
    rows = rows_L.numpy()
    return torch.from_numpy(rows[bytes_R.numpy()[rows] == value]).long()


def _rows_of(tensor: Tensor, rows_N: Tensor) -> Tensor:
    """Returns a copy of ascending rows on the CPU."""
    first, last = int(rows_N[0]), int(rows_N[-1])
    if last - first + 1 == len(rows_N):
        return tensor[first : last + 1].to("cpu", copy=True)
    return tensor.index_select(0, rows_N).cpu()
