"""Rows are in their cache before the training step that needs them.

A training's input is known before its turn comes, so what it will look up need not be guessed (Kwon et al. 2022,
"ScratchPipe", arXiv 2205.04702). Each batch passes five stages: *plan* (which rows are missing, which leave),
*collect* (what leaves, from the cache), *exchange* (write and read the store), *insert*, and *train*. Several batches
are on their way at a time: while one is trained, rows of another are exchanged by the disk's thread, and a third is
planned, and collected, by a thread of this module, which inserts what has come.

Hazards, and what is done about them:

- A row that leaves while a batch on its way needs it: each slot knows the last batch that it was planned for, and stays
  until that batch was trained; the same as hold bits of the batches behind.
- A row that leaves, is updated no more, and is read again before it was written: the disk does one exchange after the
  other, and writes before it reads.
- A row that leaves its slot before it has arrived there, as its batch was given up: batches whose exchange has not
  ended count as not over.
- A row that leaves although the next batches need it: costs two transfers and is no error. Batches that have been
  announced are looked at before room is made, so that it happens only where there is no other room.

Deviation: two exchanges are begun at most, and do not overlap; they share one device, which has many requests on their
way within each.
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
from ziggurat.storage.row_cache import CacheFull, Move, RowCache, begin_exchange
from ziggurat.storage.row_store import Ints, PendingTransfer

Slots = npt.NDArray[np.int32]
T = TypeVar("T")


class TooManyRows(ConfigError):
    """Of one batch, for memory."""


EXCHANGES = 2
"""That are begun at a time: the disk does one, and the next is there when it has ended."""


@dataclass(slots=True, eq=False)
class PrefetchTicket:
    """A batch on its way.

    Attributes:
        number: counted from 1.
        ids: what it looks up in each cache.
        updates: whether its rows will be updated.
        slots: where they lie, of the caches whose rows are there.
        planned: caches that know what they need for it.
        told: whether the caches know that it comes, so that what they have of its rows stays, if it can.
        over: whether its rows may leave.
        refused: why it cannot come.
    """

    number: int
    ids: Sequence[Ints]
    updates: bool
    slots: list[Slots] = field(default_factory=list[Slots])
    ready: threading.Event = field(default_factory=threading.Event)
    planned: int = 0
    told: bool = False
    over: bool = False
    refused: TooManyRows | None = None


class Prefetcher:
    """Brings rows for announced batches, in order. Announcing, asking and telling is for one thread.

    Args:
        caches: of the tables that batches look up.

    Attributes:
        waited_s: seconds that training waited for rows so far.
    """

    def __init__(self, caches: Sequence[RowCache]) -> None:
        self.caches = list(caches)
        self.waited_s = 0.0
        self._state = threading.Condition()
        self._coming: deque[PrefetchTicket] = deque()  # announced, not all planned
        self._exchanging: deque[tuple[PrefetchTicket, PendingTransfer[list[Slots]]]] = (
            deque()
        )  # begun; those of _coming last
        self._under_way: deque[PrefetchTicket] = deque()  # announced, not over yet; those of _coming last
        self._over: list[PrefetchTicket] = []  # over; their caches do not know yet
        self._jobs: deque[tuple[Callable[[], Any], _Outcome]] = deque()
        self._number = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="look-ahead", daemon=True)
        self._thread.start()

    def announce(self, ids: Sequence[Ints], *, updates: bool) -> PrefetchTicket:
        """A batch is coming, behind all announced before; its rows are brought from now on.

        Args:
            ids: what it looks up in each cache, (L,), within the store's rows.
            updates: whether its rows will be updated.
        """
        assert len(ids) == len(self.caches)
        with self._state:
            self._number += 1
            ticket = PrefetchTicket(self._number, ids, updates)
            self._under_way.append(ticket)
            if self._closed:
                ticket.ready.set()
            else:
                self._coming.append(ticket)
            self._state.notify_all()
        return ticket

    def slots(self, ticket: PrefetchTicket) -> list[Slots]:
        """Where the rows of a batch lie, (L,) of each cache, once they do.

        Raises:
            TooManyRows: a cache is too small for the batch, which is to be given up; others may come.
            DataError: what the store says.
        """
        started = time.perf_counter()
        ticket.ready.wait()
        self.waited_s += time.perf_counter() - started
        for failure in (ticket.refused, self._failure):
            if failure is not None:
                raise failure
        assert len(ticket.slots) == len(self.caches), "closed"
        return ticket.slots

    def done(self, ticket: PrefetchTicket, *, dropped: bool = False) -> None:
        """The batch's lookups and updates are over, or will not be: its rows may leave."""
        with self._state:
            if ticket.over:
                return
            ticket.over = True
            ticket.updates = ticket.updates and not dropped
            self._over.append(ticket)
            while self._under_way and self._under_way[0].over:
                self._under_way.popleft()
            self._state.notify_all()

    def between(self, work: Callable[[], T]) -> T:
        """What ``work`` returns or raises, done by the thread while no row comes or leaves; any thread may ask.

        Raises:
            RuntimeError: it was closed.
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
        """Bring no more; stores stay as they are."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._one():
                pass
        except BaseException as error:  # noqa: BLE001 - told to whoever asks
            self._failure = error
        finally:
            with self._state:
                for ticket in [*(ticket for ticket, _ in self._exchanging), *self._coming]:
                    ticket.ready.set()
                for _, outcome in self._jobs:
                    outcome.fail(self._failure or RuntimeError("closed"))
                self._jobs.clear()
                self._closed = True

    def _one(self) -> bool:
        """One job, or the beginning or end of an exchange; False: closed."""
        with self._state:
            self._state.wait_for(lambda: self._jobs or self._coming or self._closed or self._exchanging)
            job = self._jobs.popleft() if self._jobs else None
            coming, closed = list(self._coming), self._closed
        if job is not None:
            self._settle()
            self._told()
            work, outcome = job
            outcome.of(work)
        elif closed:
            return False
        elif coming and len(self._exchanging) < EXCHANGES:
            self._begin(coming)
        else:
            self._arrive()
        return True

    def _begin(self, coming: Sequence[PrefetchTicket]) -> None:
        """Plan the first of these batches, and begin to bring what is missing for it."""
        exchanging = [ticket.number for ticket, _ in self._exchanging]
        oldest = min([self._told(), *exchanging])
        for ticket in [each for each in coming[1:] if not each.told and not each.over]:
            ticket.told = True
            for cache, ids_L in zip(self.caches, ticket.ids, strict=True):
                cache.expect(ids_L, ticket.number)
        ticket = coming[0]
        try:
            crowded = self._exchange(ticket, oldest)
        except BaseException:
            self._settle()  # what failed before this, and may be why, is told instead
            raise
        if crowded is not None:
            self._settle()
            if exchanging or self._waited(ticket):  # what others held may be free now, and it is tried once more
                return
            ticket.refused = _too_many(ticket, self.caches[ticket.planned], crowded.missing)
            ticket.ready.set()
        with self._state:
            self._coming.popleft()

    def _exchange(self, ticket: PrefetchTicket, oldest: int) -> CacheFull | None:
        """Begin to bring the rows of a batch that are not there, of one cache after the other up to the first that is
        too crowded."""
        if ticket.over:
            ticket.ready.set()
            return None
        moves: list[tuple[RowCache, Move]] = []
        crowded: CacheFull | None = None
        for cache, ids_L in list(zip(self.caches, ticket.ids, strict=True))[ticket.planned :]:
            try:
                moves.append((cache, cache.plan(ids_L, ticket.number, oldest)))
            except CacheFull as error:
                crowded = error
                break
        if moves or crowded is None:
            self._exchanging.append((ticket, begin_exchange(moves)))
        ticket.planned += len(moves)
        return crowded

    def _arrive(self) -> None:
        """Wait for the exchange that was begun first."""
        ticket, exchange = self._exchanging[0]
        ticket.slots += exchange.wait()
        self._exchanging.popleft()
        if len(ticket.slots) == len(self.caches):
            ticket.ready.set()

    def _settle(self) -> None:
        """Wait for all exchanges that were begun."""
        while self._exchanging:
            self._arrive()

    def _told(self) -> int:
        """Tells the caches which rows have changed by what is over; number of the first batch that is not."""
        with self._state:
            over, self._over = self._over, []
            oldest = self._under_way[0].number if self._under_way else self._number + 1
        for ticket in over:
            if ticket.updates and len(ticket.slots) == len(self.caches):
                for cache, slots_L in zip(self.caches, ticket.slots, strict=True):
                    cache.changed(slots_L)
        return oldest

    def _waited(self, ticket: PrefetchTicket) -> bool:
        """Until another batch is over, whose rows may leave then, or something else is to be done; False: there is no
        other."""
        with self._state:
            if not self._over and self._under_way and self._under_way[0] is ticket:
                return False
            self._state.wait_for(lambda: self._jobs or self._closed or self._over)
            return True


def _too_many(ticket: PrefetchTicket, cache: RowCache, missing: int) -> TooManyRows:
    needed = len(np.unique(ticket.ids[ticket.planned]))
    key = "training.batch_size" if ticket.updates else "evaluation.batch_size"
    return TooManyRows(
        f"table {cache.name!r}: a batch looks up {needed:,} of its rows, and memory has room for {cache.slots:,}, "
        f"{missing:,} too few",
        f"raise planning.beyond_memory.memory, by {4 * missing * cache.store.width:,} bytes for this table alone, or "
        f"use a smaller {key}",
    )


class _Outcome:
    """What a job comes to."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    def of(self, work: Callable[[], Any]) -> None:
        try:
            self._value = work()
        except BaseException as error:  # noqa: BLE001 - raised where it was asked for
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
