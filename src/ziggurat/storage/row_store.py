"""The contract of row stores: rows of a table's shard by id, in memory or on a device.

The stores of a training run share a device, so their reads and writes are started together and run concurrently. A
transfer that was started need not be waited for: the device executes transfers in order, so a read that is started
after a write returns what that write has written.

Shape legend: U distinct rows, W float32 numbers of a row: its weights, followed by its optimizer state.
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
"""Makes initial rows, (U,) -> (U, W). It depends on the id alone, so that a row that was never written reads the same
each time."""
T = TypeVar("T")
_Chunk = list[tuple[int, slice]]
"""Rows that are transferred together: the number of a request, and which of its rows."""

MAX_CHUNK_BYTES = 32 * 2**20
"""Bytes of memory that transfers use for rows at a time, however many rows are requested."""


@dataclass(slots=True)
class Traffic:
    """Counts of transfers between a store and memory.

    Attributes:
        reads, writes: requests to the device.
        read_bytes, written_bytes: bytes of those requests.
        rows_read, rows_written: rows that callers read and wrote, including ``rows_initialised``.
        rows_initialised: rows that callers read and that had never been written, so that they were made instead.
        rows_relocated: rows that the store itself read and wrote again to free space.
    """

    reads: int = 0
    writes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    rows_read: int = 0
    rows_written: int = 0
    rows_initialised: int = 0
    rows_relocated: int = 0


@dataclass(frozen=True, slots=True)
class StartedTransfer(Generic[T]):
    """A read or write of a store that is split into device jobs and the work after them.

    Attributes:
        finish: returns the result; to be called when all jobs are done, in the order in which transfers were started.
        jobs: jobs to submit to :attr:`RowStore.transfers`.
    """

    finish: Callable[[], T]
    jobs: list[IOJob] = field(default_factory=list[IOJob])


class RowStore(ABC):
    """Stores a fixed number of rows; a row that was never written reads as ``initial`` makes it. Not thread-safe.

    Args:
        rows: number of rows.
        width: W.
        initial: makes rows that were never written.
        transfers: executes the store's jobs; None for a store without jobs.

    Attributes:
        rows, width, initial, transfers: see the arguments.
        traffic: counts of transfers so far.
        read_bytes, write_bytes: bytes of memory that a row takes at most while it is read or written.
        broken: whether a write has failed; the contents of the store are then unknown.
    """

    def __init__(self, rows: int, width: int, initial: Initial, transfers: TransferThread | None = None) -> None:
        self.rows, self.width, self.initial, self.transfers = rows, width, initial, transfers
        self.read_bytes = self.write_bytes = 4 * width
        self.traffic, self.broken = Traffic(), False

    def read(self, ids_U: Ints) -> Floats:
        """Reads rows into a new array (U, W).

        Args:
            ids_U: ascending, distinct, in [0, rows).
        """
        return begin_reads([(self, ids_U)]).wait()[0]

    def write(self, ids_U: Ints, rows_UW: Floats) -> None:
        """Replaces rows; ``ids_U`` as in :meth:`read`."""
        begin_writes([(self, ids_U, rows_UW)]).wait()

    @abstractmethod
    def written(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        """Returns which of these rows were written and not discarded by :meth:`forget` since."""

    @abstractmethod
    def forget(self, ids_U: Ints) -> None:
        """Discards the stored values of these rows, which will be written before they are read again."""

    @abstractmethod
    def close(self) -> None:
        """Releases all resources; written rows may be lost."""

    def transfer_problem(self, error: TransferError, what: str) -> DataError:
        """Returns the error to raise if the device failed to ``what`` ("read" or "write") rows of this store.

        Only stores with jobs need to implement this.
        """
        raise NotImplementedError

    @abstractmethod
    def begin_read(self, ids_U: Ints) -> StartedTransfer[Floats]:
        """Starts to read rows, at least one, all of which have been written."""

    @abstractmethod
    def begin_write(self, ids_U: Ints, rows_UW: Floats) -> StartedTransfer[None]:
        """Starts to write rows, at least one; transfers that are started later see them as written."""


class MemoryRows(RowStore):
    """A row store in memory."""

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
    """A read or write of several stores that was started."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish = finish

    def wait(self) -> T:
        """Waits for the transfer and returns its result. Call it once, in the order in which transfers were started.

        Raises:
            DataError: the device failed.
        """
        return self._finish()


def begin_reads(requests: Sequence[tuple[RowStore, Ints]]) -> PendingTransfer[list[Floats]]:
    """Starts to read rows of several stores, as :meth:`RowStore.read`; the result is an array (U, W) per request.

    Rows that together would take too much memory are read in chunks; only the last chunk is still pending on return.
    """
    _check([store for store, _ in requests])
    results = [np.empty((len(ids_U), store.width), np.float32) for store, ids_U in requests]
    written = [store.written(ids_U) for store, ids_U in requests]
    positions = [np.flatnonzero(each) for each in written]

    def begin(chunk: _Chunk) -> Callable[[], None]:
        finish_jobs = _begin_jobs(
            "read",
            [(requests[n][0], requests[n][0].begin_read(requests[n][1][positions[n][part]])) for n, part in chunk],
        )

        def finish() -> None:
            for (number, part), rows_UW in zip(chunk, finish_jobs(), strict=True):
                results[number][positions[number][part]] = rows_UW

        return finish

    finish_last = _run_in_order(
        begin, _chunks([(s, len(each), s.read_bytes) for (s, _), each in zip(requests, positions, strict=True)])
    )
    for (store, ids_U), written_U, rows_UW in zip(requests, written, results, strict=True):
        if not written_U.all():
            rows_UW[~written_U] = store.initial(ids_U[~written_U])
        store.traffic.rows_read += len(ids_U)
        store.traffic.rows_initialised += int((~written_U).sum())

    def finish() -> list[Floats]:
        finish_last()
        return results

    return PendingTransfer(finish)


def begin_writes(requests: Sequence[tuple[RowStore, Ints, Floats]]) -> PendingTransfer[None]:
    """Starts to replace rows of several stores, as :meth:`RowStore.write`, in chunks as :func:`begin_reads`.

    The caller may reuse the arrays at once, and transfers that are started later see these rows as written. If a write
    fails, its stores are marked as broken.
    """
    stores = [store for store, _, _ in requests]
    _check(stores)

    def break_stores_on_failure(work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException:
            for store in stores:
                store.broken = True
            raise

    def begin(chunk: _Chunk) -> Callable[[], object]:
        started = [(stores[n], stores[n].begin_write(requests[n][1][part], requests[n][2][part])) for n, part in chunk]
        return _begin_jobs("write", started)

    chunks = _chunks([(store, len(ids_U), store.write_bytes) for store, ids_U, _ in requests])
    finish_last = break_stores_on_failure(lambda: _run_in_order(begin, chunks))
    for store, ids_U, _ in requests:
        store.traffic.rows_written += len(ids_U)

    def finish() -> None:
        break_stores_on_failure(finish_last)

    return PendingTransfer(finish)


def _check(stores: Sequence[RowStore]) -> None:
    if any(store.broken for store in stores):
        raise RuntimeError("these rows cannot be used: an earlier write of them failed")


def _chunks(requests: Sequence[tuple[RowStore, int, int]]) -> Iterator[_Chunk]:
    """Splits requests into chunks that fit into ``MAX_CHUNK_BYTES`` and contain each store at most once.

    Args:
        requests: store, number of rows, and bytes of memory that a row takes at most.
    """
    chunk: list[tuple[int, slice]] = []
    free_bytes, stores = MAX_CHUNK_BYTES, set[int]()
    for number, (store, count, row_bytes) in enumerate(requests):
        first = 0
        while first < count:
            if free_bytes <= 0 or id(store) in stores:
                yield chunk
                chunk, free_bytes, stores = [], MAX_CHUNK_BYTES, set()
            rows = min(count - first, max(1, free_bytes // row_bytes))
            chunk.append((number, slice(first, first + rows)))
            first += rows
            free_bytes -= row_bytes * rows
            stores.add(id(store))
    if chunk:
        yield chunk


def _run_in_order(begin: Callable[[_Chunk], Callable[[], object]], chunks: Iterator[_Chunk]) -> Callable[[], object]:
    """Starts each chunk when the one before has finished; returns a function that waits for the last one."""
    finish: Callable[[], object] = lambda: None  # noqa: E731
    for chunk in chunks:
        finish()
        finish = begin(chunk)
    return finish


def _begin_jobs(what: str, started: Sequence[tuple[RowStore, StartedTransfer[T]]]) -> Callable[[], list[T]]:
    """Submits the jobs of all transfers.

    Returns:
        A function that waits for the jobs, counts their traffic and returns the transfers' results. It raises a
        DataError if the device failed.
    """
    jobs = [(store, job) for store, each in started for job in each.jobs]
    submitted: list[tuple[list[tuple[RowStore, IOJob]], Future[list[int]]]] = []
    for transfers in {id(store.transfers): store.transfers for store, _ in jobs}.values():
        assert transfers is not None
        own_jobs = [(store, job) for store, job in jobs if store.transfers is transfers]
        submitted.append((own_jobs, transfers.begin([job for _, job in own_jobs], writing=what == "write")))

    def finish() -> list[T]:
        for own_jobs, counts in submitted:
            try:
                _count(what, own_jobs, counts.result())
            except TransferError as error:
                store = next(store for store, job in own_jobs if job.file == error.file)
                raise store.transfer_problem(error, what) from error
        return [each.finish() for _, each in started]

    return finish


def _count(what: str, jobs: Sequence[tuple[RowStore, IOJob]], counts: Sequence[int]) -> None:
    for (store, job), count in zip(jobs, counts, strict=True):
        if what == "read":
            store.traffic.reads += count
            store.traffic.read_bytes += job.memory_NB.nbytes
        else:
            store.traffic.writes += count
            store.traffic.written_bytes += job.memory_NB.nbytes
