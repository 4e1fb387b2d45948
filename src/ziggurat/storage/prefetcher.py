"""Prefetches rows into their caches before the training step that needs them.

The input of a training run is known before it is used, so the rows that a step will look up need not be predicted (Kwon
et al. 2022, "ScratchPipe", arXiv 2205.04702). Each batch passes five stages: *plan* (which rows are missing, which are
evicted), *collect* (copy evicted rows out of the cache), *exchange* (write to and read from the store), *insert* (copy
the rows that were read into the cache), and *train*. Several batches are in flight at a time: while one is trained, the
disk's thread exchanges the rows of another, and a third is planned and collected by a thread of this module, which also
inserts rows.

Hazards, and how they are avoided:

- A row is evicted while a batch in flight needs it: each slot records the last batch that it was planned for, and is
  not reused before that batch has been trained. This is equivalent to the paper's hold bits.
- A row is evicted after its last update and read again before it was written: the disk executes one exchange after the
  other, and writes before it reads.
- A row is evicted from its slot before it has arrived there, because its batch was dropped: a batch counts as
  unfinished until its exchange has ended.
- A row is evicted although one of the next batches needs it: this costs two transfers but is no error. Announced
  batches are considered before slots are chosen, so it happens only if there are no other slots.

Deviation from the paper: at most two exchanges are started at a time, and they do not overlap. They share one device,
which has many requests in flight within each.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import ConfigError
from ziggurat.storage.row_cache import CacheFull, CachePlan, RowCache, begin_exchange
from ziggurat.storage.row_store import Ints, PendingTransfer

Slots = npt.NDArray[np.int32]
T = TypeVar("T")


class TooManyRows(ConfigError):
    """A batch looks up more rows than a cache has slots."""


MAX_EXCHANGES = 2
"""Exchanges that are started at a time: the disk executes one, and the next is ready when it has ended."""


@dataclass(slots=True, eq=False)
class PrefetchTicket:
    """A batch in flight.

    Attributes:
        number: the batch's number, counted from 1.
        ids: the ids that it looks up in each cache.
        updates: whether its rows will be updated.
        slots: the slots of its rows, for the caches in which they are available.
        ready: set when the rows are available in all caches, or will never be.
        planned: number of caches for which the batch is planned: the first ones.
        expected: whether the caches have been asked to keep its rows.
        finished: whether its rows may be evicted.
        error: why its rows cannot be made available.
    """

    number: int
    ids: Sequence[Ints]
    updates: bool
    slots: list[Slots] = field(default_factory=list[Slots])
    ready: threading.Event = field(default_factory=threading.Event)
    planned: int = 0
    expected: bool = False
    finished: bool = False
    error: TooManyRows | None = None


class Prefetcher:
    """Prefetches the rows of announced batches, in order.

    :meth:`announce`, :meth:`slots` and :meth:`done` must be called from one thread.

    Args:
        caches: the caches of the tables that batches look up.

    Attributes:
        waited_s: seconds that :meth:`slots` has waited for rows so far.
    """

    def __init__(self, caches: Sequence[RowCache]) -> None:
        self.caches = list(caches)
        self.waited_s = 0.0
        self._state = threading.Condition()
        self._to_plan: deque[PrefetchTicket] = deque()  # announced, not planned for all caches yet
        self._exchanges: deque[tuple[PrefetchTicket, PendingTransfer[list[Slots]]]] = deque()  # started, not ended
        self._unfinished: deque[PrefetchTicket] = deque()  # announced, not finished; includes those of _to_plan
        self._finished: list[PrefetchTicket] = []  # finished, but not yet reported to their caches
        self._jobs: deque[tuple[Callable[[], Any], _Outcome]] = deque()
        self._number = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="prefetcher", daemon=True)
        self._thread.start()

    def announce(self, ids: Sequence[Ints], *, updates: bool) -> PrefetchTicket:
        """Announces the next batch; its rows are prefetched from now on.

        Args:
            ids: the ids that it looks up in each cache, (L,), within the store's rows.
            updates: whether its rows will be updated.
        """
        assert len(ids) == len(self.caches)
        with self._state:
            self._number += 1
            ticket = PrefetchTicket(self._number, ids, updates)
            self._unfinished.append(ticket)
            if self._closed:
                ticket.ready.set()
            else:
                self._to_plan.append(ticket)
            self._state.notify_all()
        return ticket

    def slots(self, ticket: PrefetchTicket) -> list[Slots]:
        """Waits for the rows of a batch; returns their slots, (L,) of each cache.

        Raises:
            TooManyRows: a cache is too small for the batch, which must be dropped. Other batches may follow.
            DataError: a store failed.
        """
        started = time.perf_counter()
        ticket.ready.wait()
        self.waited_s += time.perf_counter() - started
        for failure in (ticket.error, self._failure):
            if failure is not None:
                raise failure
        assert len(ticket.slots) == len(self.caches), "closed"
        return ticket.slots

    def done(self, ticket: PrefetchTicket, *, dropped: bool = False) -> None:
        """Marks a batch as finished, so that its rows may be evicted.

        Args:
            ticket: the batch's ticket. A batch that is already finished stays as it is.
            dropped: whether the batch was dropped without updating its rows.
        """
        with self._state:
            if ticket.finished:
                return
            ticket.finished = True
            ticket.updates = ticket.updates and not dropped
            self._finished.append(ticket)
            while self._unfinished and self._unfinished[0].finished:
                self._unfinished.popleft()
            self._state.notify_all()

    def run_between(self, work: Callable[[], T]) -> T:
        """Runs ``work`` in the prefetching thread while no exchange is in progress; returns or raises what it does.

        Any thread may call this.

        Raises:
            RuntimeError: the prefetcher is closed.
        """
        outcome = _Outcome()
        with self._state:
            closed = self._closed
            if not closed:
                self._jobs.append((work, outcome))
                self._state.notify_all()
        if not closed:
            return outcome.wait()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        raise RuntimeError("closed")

    def close(self) -> None:
        """Stops prefetching; caches and stores are not changed."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001 - raised to every later caller
            self._failure = error
        finally:
            with self._state:
                for ticket in [*(ticket for ticket, _ in self._exchanges), *self._to_plan]:
                    ticket.ready.set()
                for _, outcome in self._jobs:
                    outcome.fail(self._failure or RuntimeError("closed"))
                self._jobs.clear()
                self._closed = True

    def _step(self) -> bool:
        """Runs one job, or starts or ends one exchange; returns False when the prefetcher is closed."""
        with self._state:
            self._state.wait_for(lambda: self._jobs or self._to_plan or self._closed or self._exchanges)
            job = self._jobs.popleft() if self._jobs else None
            to_plan, closed = list(self._to_plan), self._closed
        if job is not None:
            self._end_exchanges()
            self._mark_updates()
            work, outcome = job
            outcome.run(work)
        elif closed:
            return False
        elif to_plan and len(self._exchanges) < MAX_EXCHANGES:
            self._begin_batch(to_plan)
        else:
            self._end_exchange()
        return True

    def _begin_batch(self, to_plan: Sequence[PrefetchTicket]) -> None:
        """Plans the first of these batches and starts its exchange."""
        exchanging = [ticket.number for ticket, _ in self._exchanges]
        oldest = min([self._mark_updates(), *exchanging])
        for ticket in [each for each in to_plan[1:] if not each.expected and not each.finished]:
            ticket.expected = True
            for cache, ids_L in zip(self.caches, ticket.ids, strict=True):
                cache.expect(ids_L, ticket.number)
        ticket = to_plan[0]
        try:
            cache_full = self._begin_exchange(ticket, oldest)
        except BaseException:
            self._end_exchanges()  # raises an earlier failure instead, which may be the cause
            raise
        if cache_full is not None:
            self._end_exchanges()
            if exchanging or self._wait_for_slots(ticket):  # slots may be free now: the next step tries again
                return
            ticket.error = _too_many_rows(ticket, self.caches[ticket.planned], cache_full.missing)
            ticket.ready.set()
        with self._state:
            self._to_plan.popleft()

    def _begin_exchange(self, ticket: PrefetchTicket, oldest: int) -> CacheFull | None:
        """Plans a batch cache by cache, up to the first cache without enough slots, and starts the exchange.

        Returns:
            The error of the cache without enough slots, or None.
        """
        if ticket.finished:
            ticket.ready.set()
            return None
        plans: list[tuple[RowCache, CachePlan]] = []
        cache_full: CacheFull | None = None
        for cache, ids_L in list(zip(self.caches, ticket.ids, strict=True))[ticket.planned :]:
            try:
                plans.append((cache, cache.plan(ids_L, ticket.number, oldest)))
            except CacheFull as error:
                cache_full = error
                break
        if plans or cache_full is None:
            self._exchanges.append((ticket, begin_exchange(plans)))
        ticket.planned += len(plans)
        return cache_full

    def _end_exchange(self) -> None:
        """Waits for the exchange that was started first."""
        ticket, exchange = self._exchanges[0]
        ticket.slots += exchange.wait()
        self._exchanges.popleft()
        if len(ticket.slots) == len(self.caches):
            ticket.ready.set()

    def _end_exchanges(self) -> None:
        """Waits for all exchanges that were started."""
        while self._exchanges:
            self._end_exchange()

    def _mark_updates(self) -> int:
        """Marks the rows that finished batches have updated; returns the number of the first unfinished batch."""
        with self._state:
            finished, self._finished = self._finished, []
            oldest = self._unfinished[0].number if self._unfinished else self._number + 1
        for ticket in finished:
            if ticket.updates and len(ticket.slots) == len(self.caches):
                for cache, slots_L in zip(self.caches, ticket.slots, strict=True):
                    cache.mark_dirty(slots_L)
        return oldest

    def _wait_for_slots(self, ticket: PrefetchTicket) -> bool:
        """Waits until another batch is finished, so that its rows may be evicted, or until there is other work.

        Returns:
            False, without waiting, if there is no other unfinished batch.
        """
        with self._state:
            if not self._finished and self._unfinished and self._unfinished[0] is ticket:
                return False
            self._state.wait_for(lambda: self._jobs or self._closed or self._finished)
            return True


def _too_many_rows(ticket: PrefetchTicket, cache: RowCache, missing: int) -> TooManyRows:
    needed = len(np.unique(ticket.ids[ticket.planned]))
    key = "training.batch_size" if ticket.updates else "evaluation.batch_size"
    return TooManyRows(
        f"table {cache.name!r}: a batch looks up {needed:,} of its rows, but memory has slots for {cache.slots:,}, "
        f"{missing:,} too few",
        f"raise planning.beyond_memory.memory, by {4 * missing * cache.store.width:,} bytes for this table alone, or "
        f"use a smaller {key}",
    )


class _Outcome:
    """The result of a job, for the thread that waits for it."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self, work: Callable[[], Any]) -> None:
        try:
            self._value = work()
        except BaseException as error:  # noqa: BLE001 - raised by wait()
            self._error = error
        self._event.set()

    def fail(self, error: BaseException) -> None:
        self._error = error
        self._event.set()

    def wait(self) -> Any:
        self._event.wait()
        if self._error is not None:
            raise self._error
        return self._value
