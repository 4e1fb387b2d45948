"""Rows of a table's shard by id, wherever they lie.

Stores of one training share a device, so they read together, and write together: what each of them wants is asked for
side by side. What was begun need not be waited for: the device does one thing after the other, so a read that is begun
behind a write finds what that writes.

Shape legend: U distinct rows, W float32 numbers of a row: its weights and behind them its optimizer's states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.storage.async_io import IOJob, TransferError, TransferThread

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Initial = Callable[[Ints], Floats]
"""Rows as they begin, (U,) -> (U, W): a function of the id alone, so that a row that nobody wrote is the same again."""
T = TypeVar("T")
_Turn = list[tuple[int, slice]]
"""Of which asking, by number, which rows."""

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
class StartedTransfer(Generic[T]):
    """A read or write of a store: what the device has to do for it, and what is left behind that.

    Attributes:
        jobs: of :attr:`RowStore.transfers`.
        finish: to be called when they are done, in the order in which they were begun.
    """

    finish: Callable[[], T]
    jobs: list[IOJob] = field(default_factory=list[IOJob])


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

    def __init__(self, rows: int, width: int, initial: Initial, transfers: TransferThread | None = None) -> None:
        self.rows, self.width, self.initial, self.transfers = rows, width, initial, transfers
        self.read_bytes = self.write_bytes = 4 * width
        self.traffic, self.broken = Traffic(), False

    def read(self, ids_U: Ints) -> Floats:
        """Rows (U, W), the caller's to keep.

        Args:
            ids_U: ascending, distinct, in [0, rows).
        """
        return begin_reading([(self, ids_U)]).wait()[0]

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        """Replace rows; ``ids_U`` as in :meth:`read`."""
        begin_writing([(self, ids_U, rows_UW)]).wait()

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
    def begin_read(self, ids_U: Ints) -> StartedTransfer[Floats]:
        """Of rows that were written, at least one."""

    @abstractmethod
    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> StartedTransfer[None]:
        """Of at least one row; what is begun behind it finds them written."""


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

    def begin_read(self, ids_U: Ints) -> StartedTransfer[Floats]:
        rows_UW = self._rows_RW[ids_U]
        return StartedTransfer(lambda: rows_UW)

    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> StartedTransfer[None]:
        self._rows_RW[ids_U] = rows_UW
        self._written_R[ids_U] = True
        return StartedTransfer(lambda: None)

    def close(self) -> None:
        self._rows_RW = np.empty((0, self.width), np.float32)


class PendingTransfer(Generic[T]):
    """A read or write of some stores that was begun."""

    def __init__(self, end: Callable[[], T]) -> None:
        self._end = end

    def wait(self) -> T:
        """What comes of it; to be asked once, of what was begun first first.

        Raises:
            DataError: the device could not; the store says what that means.
        """
        return self._end()


def begin_reading(asked: Sequence[tuple[RowStore, Ints]]) -> PendingTransfer[list[Floats]]:
    """Rows (U, W) of some stores, as :meth:`RowStore.read`; those that take too much memory together are read in turns,
    all but the last at once."""
    _check([store for store, _ in asked])
    found = [np.empty((len(ids_U), store.width), np.float32) for store, ids_U in asked]
    there = [store.written(ids_U) for store, ids_U in asked]
    places = [np.flatnonzero(each) for each in there]

    def begun(turn: _Turn) -> Callable[[], None]:
        moved = _moved(
            "read", [(asked[n][0], asked[n][0].begin_read(asked[n][1][places[n][part]])) for n, part in turn]
        )

        def end() -> None:
            for (number, part), rows_UW in zip(turn, moved(), strict=True):
                found[number][places[number][part]] = rows_UW

        return end

    last = _one_behind_the_other(
        begun, _turns([(s, len(each), s.read_bytes) for (s, _), each in zip(asked, places, strict=True)])
    )
    for (store, ids_U), there_U, rows_UW in zip(asked, there, found, strict=True):
        if not there_U.all():
            rows_UW[~there_U] = store.initial(ids_U[~there_U])
        store.traffic.rows_read += len(ids_U)
        store.traffic.rows_made += int((~there_U).sum())

    def end() -> list[Floats]:
        last()
        return found

    return PendingTransfer(end)


def begin_writing(asked: Sequence[tuple[RowStore, Ints, Floats]]) -> PendingTransfer[None]:
    """Replace rows of some stores, as :meth:`RowStore.write`, in turns as :func:`begin_reading`; where that fails,
    their rows are not to be had again. The arrays are the caller's again at once, and what is begun behind it finds
    these rows written."""
    stores = [store for store, _, _ in asked]
    _check(stores)

    def failing(work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException:
            for store in stores:
                store.broken = True
            raise

    def begun(turn: _Turn) -> Callable[[], object]:
        begun = [(stores[n], stores[n].begin_write(asked[n][1][part], asked[n][2][part])) for n, part in turn]
        return _moved("write", begun)

    turns = _turns([(store, len(ids_U), store.write_bytes) for store, ids_U, _ in asked])
    last = failing(lambda: _one_behind_the_other(begun, turns))
    for store, ids_U, _ in asked:
        store.traffic.rows_written += len(ids_U)

    def end() -> None:
        failing(last)

    return PendingTransfer(end)


def _check(stores: Sequence[RowStore]) -> None:
    if any(store.broken for store in stores):
        raise RuntimeError("a write of these rows failed before")


def _turns(asked: Sequence[tuple[RowStore, int, int]]) -> Iterator[_Turn]:
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


def _one_behind_the_other(
    begun: Callable[[_Turn], Callable[[], object]], turns: Iterator[_Turn]
) -> Callable[[], object]:
    """Begin one turn after the other, each when the one before has ended; returns what waits for the last."""
    end: Callable[[], object] = lambda: None  # noqa: E731
    for turn in turns:
        end()
        end = begun(turn)
    return end


def _moved(what: str, begun: Sequence[tuple[RowStore, StartedTransfer[T]]]) -> Callable[[], list[T]]:
    """Begin all jobs; returns what waits for them, counts them, and finishes.

    Raises:
        DataError: by what is returned: the device could not; the store says what that means.
    """
    asking = [(store, job) for store, each in begun for job in each.jobs]
    moving: list[tuple[list[tuple[RowStore, IOJob]], Future[list[int]]]] = []
    for transfers in {id(store.transfers): store.transfers for store, _ in asking}.values():
        assert transfers is not None
        mine = [(store, job) for store, job in asking if store.transfers is transfers]
        moving.append((mine, transfers.begin([job for _, job in mine], writing=what == "write")))

    def end() -> list[T]:
        for mine, counts in moving:
            try:
                _count(what, mine, counts.result())
            except TransferError as error:
                store = next(store for store, job in mine if job.file == error.file)
                raise store.explained(error, what) from error
        return [each.finish() for _, each in begun]

    return end


def _count(what: str, moved: Sequence[tuple[RowStore, IOJob]], counts: Sequence[int]) -> None:
    for (store, job), count in zip(moved, counts, strict=True):
        if what == "read":
            store.traffic.reads += count
            store.traffic.read_bytes += job.memory_NB.nbytes
        else:
            store.traffic.writes += count
            store.traffic.written_bytes += job.memory_NB.nbytes
