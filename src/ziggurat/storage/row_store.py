"""Rows of a table's shard by id, wherever they lie.

Stores of one training share a device, so they read together, and write together: what each of them wants is asked for
side by side.

Shape legend: U distinct rows, W float32 numbers of a row: its weights and behind them its optimizer's states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.storage.transfers import Job, TransferError, Transfers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Initial = Callable[[Ints], Floats]
"""Rows as they begin, (U,) -> (U, W): a function of the id alone, so that a row that nobody wrote is the same again."""
T = TypeVar("T")

TOGETHER = 32 * 2**20
"""Bytes of memory, at most, through which stores move rows at a time, whatever they are asked for."""


@dataclass(slots=True)
class Traffic:
    """What moved between a store and memory.

    Attributes:
        reads, writes: requests to the device.
        read_bytes, written_bytes: of them.
        rows_read, rows_written: that were asked for; those that nobody had written are made, not read.
        rows_made: those.
        rows_moved: that the store read and wrote for its own sake.
    """

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    rows_read: int = 0
    rows_written: int = 0
    rows_made: int = 0
    rows_moved: int = 0


@dataclass(frozen=True, slots=True)
class Begun(Generic[T]):
    """A read or write of a store: what the device has to do for it, and what is left behind that.

    Attributes:
        jobs: of :attr:`RowStore.transfers`.
        finish: to be called when they are done.
    """

    finish: Callable[[], T]
    jobs: list[Job] = field(default_factory=list[Job])


class RowStore(ABC):
    """So many rows; each that was never written is as ``initial`` makes it. For one thread at a time.

    Args:
        rows, width, initial: see above.
        transfers: what moves its jobs, if there are any.

    Attributes:
        rows: how many.
        width: W.
        traffic: so far.
        read_bytes, write_bytes: of memory that a row takes at most while it is read, or written.
        broken: whether a write failed, so that nobody knows which rows are there.
    """

    def __init__(self, rows: int, width: int, initial: Initial, transfers: Transfers | None = None) -> None:
        self.rows, self.width, self.initial, self.transfers = rows, width, initial, transfers
        self.read_bytes = self.write_bytes = 4 * width
        self.traffic, self.broken = Traffic(), False

    def read(self, ids_U: Ints) -> Floats:
        """Rows (U, W), the caller's to keep.

        Args:
            ids_U: ascending, distinct, in [0, rows).
        """
        return read_together([(self, ids_U)])[0]

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        """Replace rows; ``ids_U`` as in :meth:`read`."""
        write_together([(self, ids_U, rows_UW)])

    @abstractmethod
    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        """Which of these rows were written, and not forgotten."""

    @abstractmethod
    def forget(self, ids_U: Ints) -> None:
        """These rows will be written before they are read again: what they are matters no more."""

    @abstractmethod
    def close(self) -> None:
        """Give back what it holds; what was written need not be there again."""

    def explained(self, error: TransferError, what: str) -> DataError:
        """What the device said when it was to ``what`` for this store; of those that give it no jobs, nobody asks."""
        raise NotImplementedError

    @abstractmethod
    def begin_read(self, ids_U: Ints) -> Begun[Floats]:
        """Of rows that were written, at least one."""

    @abstractmethod
    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> Begun[None]:
        """Of at least one row."""


class MemoryRows(RowStore):
    """Rows in memory."""

    def __init__(self, rows: int, width: int, initial: Initial) -> None:
        super().__init__(rows, width, initial)
        self._rows_RW = np.empty((rows, width), np.float32)
        self._written_R = np.zeros(rows, np.bool_)

    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        return self._written_R[ids_U]

    def forget(self, ids_U: Ints) -> None:
        self._rows_RW[ids_U] = np.nan
        self._written_R[ids_U] = False

    def begin_read(self, ids_U: Ints) -> Begun[Floats]:
        return Begun(lambda: self._rows_RW[ids_U])

    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> Begun[None]:
        def finish() -> None:
            self._rows_RW[ids_U] = rows_UW
            self._written_R[ids_U] = True

        return Begun(finish)

    def close(self) -> None:
        self._rows_RW = np.empty((0, self.width), np.float32)


def read_together(asked: Sequence[tuple[RowStore, Ints]]) -> list[Floats]:
    """Rows (U, W) of some stores, as :meth:`RowStore.read`."""
    _check([store for store, _ in asked])
    found = [np.empty((len(ids_U), store.width), np.float32) for store, ids_U in asked]
    there = [store.written(ids_U) for store, ids_U in asked]
    places = [np.flatnonzero(each) for each in there]
    for turn in _turns([(s, len(each), s.read_bytes) for (s, _), each in zip(asked, places, strict=True)]):
        begun = [(asked[n][0], asked[n][0].begin_read(asked[n][1][places[n][part]])) for n, part in turn]
        _move("read", begun)
        for (number, part), (_, each) in zip(turn, begun, strict=True):
            found[number][places[number][part]] = each.finish()
    for (store, ids_U), there_U, rows_UW in zip(asked, there, found, strict=True):
        if not there_U.all():
            rows_UW[~there_U] = store.initial(ids_U[~there_U])
        store.traffic.rows_read += len(ids_U)
        store.traffic.rows_made += int((~there_U).sum())
    return found


def write_together(asked: Sequence[tuple[RowStore, Ints, Floats]]) -> None:
    """Replace rows of some stores, as :meth:`RowStore.write`; where that fails, their rows are not to be had again."""
    stores = [store for store, _, _ in asked]
    _check(stores)
    try:
        for turn in _turns([(store, len(ids_U), store.write_bytes) for store, ids_U, _ in asked]):
            begun = [(stores[n], stores[n].begin_write(asked[n][1][part], asked[n][2][part])) for n, part in turn]
            _move("write", begun)
            for _, each in begun:
                each.finish()
    except BaseException:
        for store in stores:
            store.broken = True
        raise
    for store, ids_U, _ in asked:
        store.traffic.rows_written += len(ids_U)


def _check(stores: Sequence[RowStore]) -> None:
    if any(store.broken for store in stores):
        raise RuntimeError("a write of these rows failed before")


def _turns(asked: Sequence[tuple[RowStore, int, int]]) -> Iterator[list[tuple[int, slice]]]:
    """Which rows of which asking, by number, go together: no more than memory should be taken for, and of each store
    some at a time.

    Args:
        asked: store, rows, and bytes of memory that each takes at most.
    """
    turn: list[tuple[int, slice]] = []
    room, stores = TOGETHER, set[int]()
    for number, (store, count, size) in enumerate(asked):
        first = 0
        while first < count:
            if room <= 0 or id(store) in stores:
                yield turn
                turn, room, stores = [], TOGETHER, set()
            some = min(count - first, max(1, room // size))
            turn.append((number, slice(first, first + some)))
            first += some
            room -= size * some
            stores.add(id(store))
    if turn:
        yield turn


def _move(what: str, begun: Sequence[tuple[RowStore, Begun[T]]]) -> None:
    """Do all jobs.

    Raises:
        DataError: the device could not; the store says what that means.
    """
    asking = [(store, job) for store, each in begun for job in each.jobs]
    for transfers in {id(store.transfers): store.transfers for store, _ in asking}.values():
        assert transfers is not None
        mine = [(store, job) for store, job in asking if store.transfers is transfers]
        try:
            counts = (transfers.read if what == "read" else transfers.write)([job for _, job in mine])
        except TransferError as error:
            store = next(store for store, job in mine if job.file == error.file)
            raise store.explained(error, what) from error
        for (store, job), count in zip(mine, counts, strict=True):
            if what == "read":
                store.traffic.reads += count
                store.traffic.read_bytes += job.memory_NB.nbytes
            else:
                store.traffic.writes += count
                store.traffic.written_bytes += job.memory_NB.nbytes
