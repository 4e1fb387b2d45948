"""Batches of one epoch, asked of several readers at once and handed on in order.

The epoch is cut into *segments* of a few steps. The reader that is free takes the first segment that nobody has, so a
quick one takes more of them than a slow one, and at most ``ahead`` segments are asked for and not yet consumed: that is
the back-pressure, and the bound of memory. What a lost reader still owed of its segment goes back to the others; what
had arrived is kept. Every row is therefore handed on once, whoever sent it, and in the order of the stream.

Readers to whom a pool is costly, because they make it from raw logs, do not take what comes: of R readers, number r
serves the pools r, r + R, r + 2 R and so on, and makes the next of them ready while the others serve theirs. The pools
of a lost one are anybody's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ReadersLost
from ziggurat.data.encoded.stream import Order
from ziggurat.data.ingest.connection import LOST, Connection, first_line

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a reader that failed is asked again; doubled each time."""

_LOOK_SECONDS = 0.5
_CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class Segment:
    """Consecutive steps that are asked for together.

    Attributes:
        number: of the segment in its epoch.
        pool: that holds its rows.
        owed: ranges that have not arrived.
        arrived: batches that have, and are not consumed.
    """

    number: int
    pool: int
    owed: deque[range]
    arrived: deque[Batch] = field(default_factory=deque[Batch])


@dataclass(slots=True)
class _Health:
    """How a reader does: its last failure and when it has been asked something that it has not answered."""

    failure: str = ""
    lost: bool = False
    asked: float | None = None


class Pull:
    """The threads, one for each reader, and what has arrived.

    Args:
        connections: the readers; closed at the end.
        split, order: which stream.
        segments: of the rest of the epoch.
        pools: where each pool of the stream begins.
        ahead: segments asked for and not consumed.
        seconds: how long no reader may send anything while the consumer waits.
        note: told in the consumer's thread when a reader is lost or comes back.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        split: str,
        order: Order,
        segments: Iterator[Segment],
        pools: Sequence[int],
        ahead: int,
        seconds: float,
        note: Callable[[str], None],
    ) -> None:
        self._connections, self._split, self._order = connections, split, order
        self._segments, self._pools, self._ahead, self._seconds, self._note = segments, pools, ahead, seconds, note
        self._changed = threading.Condition()
        self._window: deque[Segment] = deque()
        self._waiting: list[Segment] = []
        self._health = {each.address: _Health() for each in connections}
        self._news: deque[str] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._last_arrival = 0.0
        self.waited_seconds = 0.0
        """How long the consumer waited for batches."""

    def batches(self) -> Generator[Batch]:
        """Everything, in order.

        Raises:
            ReadersLost: no reader sent anything for ``seconds``; each is named, with its last failure.
            DataError: a reader is of another dataset or version.
        """
        threads = [
            threading.Thread(target=self._work, args=(number, each), name=f"pull {each.address}", daemon=True)
            for number, each in enumerate(self._connections)
        ]
        with self._changed:
            self._refill()
        for thread in threads:
            thread.start()
        try:
            while (batch := self._next()) is not None:
                while self._news:
                    self._note(self._news.popleft())
                yield batch
        finally:
            self._close(threads)

    def _close(self, threads: Sequence[threading.Thread]) -> None:
        """End the threads. One that is held up in the opening of a connection ends with that, by itself."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        until = time.monotonic() + _CLOSE_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < until:
            for connection, thread in zip(self._connections, threads, strict=True):
                connection.cancel()
                thread.join(0.05)

    def _next(self) -> Batch | None:
        with self._changed:
            self._refill()
            if not self._window:
                return None
            segment = self._window[0]
            if not segment.arrived:
                self._wait(segment)
            batch = segment.arrived.popleft()
            if not segment.owed and not segment.arrived:
                self._window.popleft()
            return batch

    def _refill(self) -> None:
        while len(self._window) < self._ahead:
            segment = next(self._segments, None)
            if segment is None:
                return
            self._window.append(segment)
            self._waiting.append(segment)
            self._changed.notify_all()

    def _wait(self, segment: Segment) -> None:
        began = time.monotonic()
        try:
            while not segment.arrived:
                if self._error is not None:
                    raise self._error
                if time.monotonic() - max(began, self._last_arrival) > self._seconds:
                    raise self._all_lost()
                self._changed.wait(_LOOK_SECONDS)
        finally:
            self.waited_seconds += time.monotonic() - began

    def _work(self, number: int, reader: Connection) -> None:
        """A reader's thread: take a segment, ask for what it owes, hand it on."""
        pause, ready = _FIRST_PAUSE, -1
        try:
            while not self._closed:
                segment = None
                try:
                    reader.connect()
                    ready = self._warm(number, reader, ready)
                    segment = self._take(number, reader)
                    if segment is None:
                        return
                    for batch in reader.batches(self._split, self._order, list(segment.owed)):
                        if not self._arrive(reader, segment, batch):
                            return
                    pause = _FIRST_PAUSE
                except LOST as error:
                    reader.close()
                    self._lose(reader, segment, error)
                    self._rest(pause)
                    pause, ready = min(2 * pause, _LONGEST_PAUSE), -1
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            reader.close()

    def _warm(self, number: int, reader: Connection, ready: int) -> int:
        """Have a costly reader make its next pool: the one that is wanted first, later the one behind it.

        Args:
            ready: the last pool that it was told to make; -1 for none.

        Returns:
            The same, now.
        """
        if not reader.costly:
            return ready
        with self._changed:
            wanted = self._window[0].pool if self._window else len(self._pools)
        own = wanted + (number - wanted) % len(self._connections)
        pool = own if ready < own else own + len(self._connections)
        if pool > ready and pool < len(self._pools):
            reader.warm(self._split, self._order, self._pools[pool])
            return pool
        return ready

    def _take(self, number: int, reader: Connection) -> Segment | None:
        """The first segment that nobody has and that this reader may serve; None at the end."""
        with self._changed:
            self._health[reader.address].asked = None
            while not self._closed:
                for place, segment in enumerate(self._waiting):
                    if not reader.costly or self._is_for(number, segment):
                        self._health[reader.address].asked = time.monotonic()
                        return self._waiting.pop(place)
                self._changed.wait()
            return None

    def _is_for(self, number: int, segment: Segment) -> bool:
        owner = segment.pool % len(self._connections)
        return owner == number or self._health[self._connections[owner].address].lost

    def _arrive(self, reader: Connection, segment: Segment, batch: Batch) -> bool:
        """Put a batch where the consumer finds it; False when nobody wants it any more."""
        with self._changed:
            health = self._health[reader.address]
            self._last_arrival = health.asked = time.monotonic()
            if health.lost:
                health.lost = False
                self._news.append(f"reader {reader.address}: back")
            segment.owed.popleft()
            segment.arrived.append(batch)
            self._changed.notify_all()
            return not self._closed

    def _lose(self, reader: Connection, segment: Segment | None, error: BaseException) -> None:
        """Note that a reader is lost, and give back what it still owed."""
        with self._changed:
            health = self._health[reader.address]
            health.failure, health.asked = first_line(error), None
            if not health.lost and not self._closed:
                health.lost = True
                self._news.append(f"reader {reader.address}: lost ({health.failure}); its rows are asked of the others")
            if segment is not None and segment.owed:
                self._waiting.append(segment)
                self._waiting.sort(key=lambda each: each.number)
            self._changed.notify_all()

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._changed:
            while not self._closed and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def _all_lost(self) -> ReadersLost:
        def state(health: _Health) -> str:
            if health.asked is not None and not health.failure:
                return f"asked {time.monotonic() - health.asked:.0f} s ago, no answer yet"
            return health.failure or "never asked"

        listed = "\n  ".join(f"{address}: {state(health)}" for address, health in self._health.items())
        return ReadersLost(
            f"no reader has sent a batch for {self._seconds:g} s\n  {listed}",
            "start them again (`ziggurat ingest`), or name others with --readers; run the same command to go on from "
            "the last checkpoint",
        )
