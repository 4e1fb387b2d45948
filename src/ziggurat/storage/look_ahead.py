"""Rows are in their cache before the training step that needs them.

A training's input is known before its turn comes, so what it will look up need not be guessed (Kwon et al. 2022,
"ScratchPipe", arXiv 2205.04702). Each batch passes five stages: *plan* (which rows are missing, which leave), *collect*
(what leaves, from the cache), *exchange* (write and read the store), *insert*, all in a thread of their own, and
*train*. Several batches are on their way at a time.

Hazards, and what is done about them:

- A row that leaves while a batch on its way needs it: each slot knows the last batch that it was planned for, and stays
  until that batch was trained; the same as hold bits of the batches behind.
- A row that leaves, is updated no more, and is read again before it was written: stages of one batch follow those of
  the one before, and write before they read.
- A row that leaves although the next batches need it: costs two transfers and is no error. Batches that have been
  announced are looked at before room is made, so that it happens only where there is no other room.

Deviations: stages two to four of different batches do not overlap; they share one device, which has many requests on
their way within a stage.
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
from ziggurat.storage.row_cache import Crowded, Move, RowCache, moved_together
from ziggurat.storage.row_store import Ints

Slots = npt.NDArray[np.int32]
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Ticket:
    """A batch on its way.

    Attributes:
        number: counted from 1.
        ids: what it looks up in each cache.
        updates: whether its rows will be updated.
        slots: where they lie, once all are there.
        told: whether the caches know that it comes, so that what they have of its rows stays, if it can.
    """

    number: int
    ids: Sequence[Ints]
    updates: bool
    slots: list[Slots] = field(default_factory=list[Slots])
    ready: threading.Event = field(default_factory=threading.Event)
    told: bool = False
    over: bool = False


@dataclass(slots=True)
class Seconds:
    """Where time went.

    Attributes:
        waited: by training, for rows.
        worked: by the thread, for batches.
    """

    waited: float = 0.0
    worked: float = 0.0


class LookAhead:
    """Brings rows for announced batches, in order. Announcing, asking and telling is for one thread.

    Args:
        caches: of the tables that batches look up.

    Attributes:
        seconds: so far.
    """

    def __init__(self, caches: Sequence[RowCache]) -> None:
        self.caches = list(caches)
        self.seconds = Seconds()
        self._state = threading.Condition()
        self._coming: deque[Ticket] = deque()  # announced, rows not brought yet
        self._under_way: deque[Ticket] = deque()  # announced, not over yet; those of _coming last
        self._over: list[Ticket] = []  # over; their caches do not know yet
        self._jobs: deque[tuple[Callable[[], Any], _Outcome]] = deque()
        self._number = 0
        self._failure: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="look-ahead", daemon=True)
        self._thread.start()

    def announce(self, ids: Sequence[Ints], *, updates: bool) -> Ticket:
        """A batch is coming, behind all announced before; its rows are brought from now on.

        Args:
            ids: what it looks up in each cache, (L,), within the store's rows.
            updates: whether its rows will be updated.
        """
        assert len(ids) == len(self.caches)
        with self._state:
            self._number += 1
            ticket = Ticket(self._number, ids, updates)
            self._under_way.append(ticket)
            if self._closed:
                ticket.ready.set()
            else:
                self._coming.append(ticket)
            self._state.notify_all()
        return ticket

    def slots(self, ticket: Ticket) -> list[Slots]:
        """Where the rows of a batch lie, (L,) of each cache, once they do.

        Raises:
            ConfigError: a cache is too small for the batch.
            DataError: what the store says.
        """
        started = time.perf_counter()
        ticket.ready.wait()
        self.seconds.waited += time.perf_counter() - started
        if self._failure is not None:
            raise self._failure
        assert len(ticket.slots) == len(self.caches), "closed"
        return ticket.slots

    def done(self, ticket: Ticket, *, dropped: bool = False) -> None:
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
                for ticket in self._coming:
                    ticket.ready.set()
                for _, outcome in self._jobs:
                    outcome.fail(self._failure or RuntimeError("closed"))
                self._jobs.clear()
                self._closed = True

    def _one(self) -> bool:
        """One job, or one batch, or a part of it; False: closed."""
        with self._state:
            self._state.wait_for(lambda: self._jobs or self._coming or self._closed)
            job = self._jobs.popleft() if self._jobs else None
            coming = list(self._coming)
            if job is None and self._closed:
                return False
        oldest = self._told()
        if job is not None:
            work, outcome = job
            outcome.of(work)
            return True
        started = time.perf_counter()
        for ticket in [each for each in coming[1:] if not each.told and not each.over]:
            ticket.told = True
            for cache, ids_L in zip(self.caches, ticket.ids, strict=True):
                cache.expect(ids_L, ticket.number)
        ticket = coming[0]
        crowded = self._bring(ticket, oldest)
        self.seconds.worked += time.perf_counter() - started
        if crowded is not None:
            self._wait_for_others(ticket, self.caches[len(ticket.slots)], crowded.missing)
            return True
        with self._state:
            self._coming.popleft()
        ticket.ready.set()
        return True

    def _bring(self, ticket: Ticket, oldest: int) -> Crowded | None:
        """Bring the rows of a batch that are not there, of one cache after the other up to the first that is too
        crowded."""
        if ticket.over:
            return None
        moves: list[tuple[RowCache, Move]] = []
        crowded: Crowded | None = None
        for cache, ids_L in list(zip(self.caches, ticket.ids, strict=True))[len(ticket.slots) :]:
            try:
                moves.append((cache, cache.plan(ids_L, ticket.number, oldest)))
            except Crowded as error:
                crowded = error
                break
        ticket.slots += moved_together(moves)
        return crowded

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

    def _wait_for_others(self, ticket: Ticket, cache: RowCache, missing: int) -> None:
        """Until another batch is over, whose rows may leave then, or something else is to be done.

        Raises:
            ConfigError: there is no other.
        """
        with self._state:
            if not self._over and self._under_way and self._under_way[0] is ticket:
                needed = len(np.unique(ticket.ids[len(ticket.slots)]))
                raise ConfigError(
                    f"table {cache.name!r}: a batch looks up {needed:,} of its rows, and its cache holds "
                    f"{cache.slots:,}, {missing:,} too few",
                    "give the tables more memory (planning.beyond_memory.memory), or use a smaller training.batch_size",
                )
            self._state.wait_for(lambda: self._jobs or self._closed or self._over)


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
