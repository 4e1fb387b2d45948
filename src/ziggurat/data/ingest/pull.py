"""Pulls the batches of one epoch from several readers concurrently and yields them in order.

The epoch is divided into *segments* of a few steps. An idle reader takes the first unassigned segment, so a fast reader
serves more of them than a slow one. At most ``ahead`` segments are requested and not yet consumed, which provides
back-pressure and bounds memory. If a reader is lost, the undelivered part of its segment is reassigned; delivered
batches are kept. So every row is delivered exactly once, in the order of the stream, from whichever reader.

Readers for which a pool is costly, because they make it from raw logs, are assigned pools statically: of R readers,
reader r serves the pools r, r + R, r + 2 R and so on, and prepares its next pool while the others serve theirs. Any
reader may serve the pools of a lost one.
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
from ziggurat.data.ingest.connection import LOST, Connection
from ziggurat.network.flight_client import first_line

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a failed reader is tried again: the first pause, doubled each time up to the longest."""

_POLL_SECONDS = 0.5
_CLOSE_SECONDS = 5.0


@dataclass(slots=True)
class Segment:
    """Consecutive steps that are requested together.

    Attributes:
        number: the index of the segment in its epoch.
        pool: the index of the pool that holds its rows.
        pending: ranges whose batches have not arrived.
        arrived: batches that have arrived and are not consumed.
    """

    number: int
    pool: int
    pending: deque[range]
    arrived: deque[Batch] = field(default_factory=deque[Batch])


@dataclass(slots=True)
class _ReaderState:
    """The state of a reader: its last failure, and when it received a request that it has not answered."""

    failure: str = ""
    lost: bool = False
    requested_at: float | None = None


class Pull:
    """Runs one thread per reader and collects the arriving batches.

    Args:
        connections: the connections to the readers.
        split, order: the stream.
        segments: the segments of the rest of the epoch.
        pools: the position in the stream at which each pool begins.
        ahead: maximum number of segments that are requested and not consumed.
        seconds: how long all readers may be silent while the consumer waits.
        note: called in the consumer's thread with a message when a reader is lost or comes back.
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
        self._unassigned: list[Segment] = []
        self._states = {each.address: _ReaderState() for each in connections}
        self._messages: deque[str] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._last_arrival = 0.0
        self.waited_seconds = 0.0
        """How long the consumer waited for batches."""
        self.reusable: Sequence[Connection] = ()
        """After the end, the connections that can be used again."""

    def batches(self) -> Generator[Batch]:
        """Yields all batches, in order.

        Raises:
            ReadersLost: no reader sent anything for ``seconds``; the message lists each with its last failure.
            DataError: a reader serves another dataset, has another version, refuses this trainer, or sends something
                other than was asked for.
        """
        threads = [
            threading.Thread(target=self._run_reader, args=(number, each), name=f"pull {each.address}", daemon=True)
            for number, each in enumerate(self._connections)
        ]
        with self._changed:
            self._refill()
        for thread in threads:
            thread.start()
        try:
            while (batch := self._next_batch()) is not None:
                while self._messages:
                    self._note(self._messages.popleft())
                yield batch
        finally:
            self._close(threads)

    def _close(self, threads: Sequence[threading.Thread]) -> None:
        """Stops the threads. A thread that is blocked in opening a connection ends by itself afterwards."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + _CLOSE_SECONDS
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            for connection, thread in zip(self._connections, threads, strict=True):
                thread.join(0.05)  # enough for the end of an answer that has arrived
                if thread.is_alive():
                    connection.cancel()
        ended = [each for each, thread in zip(self._connections, threads, strict=True) if not thread.is_alive()]
        self.reusable = ended if self._error is None else ()

    def _next_batch(self) -> Batch | None:
        with self._changed:
            self._refill()
            if not self._window:
                return None
            segment = self._window[0]
            if not segment.arrived:
                self._wait(segment)
            batch = segment.arrived.popleft()
            if not segment.pending and not segment.arrived:
                self._window.popleft()
            return batch

    def _refill(self) -> None:
        while len(self._window) < self._ahead:
            segment = next(self._segments, None)
            if segment is None:
                return
            self._window.append(segment)
            self._unassigned.append(segment)
            self._changed.notify_all()

    def _wait(self, segment: Segment) -> None:
        started = time.monotonic()
        try:
            while not segment.arrived:
                if self._error is not None:
                    raise self._error
                if time.monotonic() - max(started, self._last_arrival) > self._seconds:
                    raise self._readers_lost_error()
                self._changed.wait(_POLL_SECONDS)
        finally:
            self.waited_seconds += time.monotonic() - started

    def _run_reader(self, number: int, reader: Connection) -> None:
        """Runs in a reader's thread: takes segments, requests their pending ranges and delivers the batches."""
        pause, warmed = _FIRST_PAUSE, -1
        try:
            while not self._closed:
                segment = None
                try:
                    reader.connect()
                    warmed = self._warm(number, reader, warmed)
                    segment = self._next_segment(number, reader)
                    if segment is None:
                        return
                    for batch in reader.batches(self._split, self._order, list(segment.pending)):
                        if not self._deliver(reader, segment, batch):
                            return
                    pause = _FIRST_PAUSE
                except LOST as error:
                    if self._closed:  # it was cancelled
                        return
                    reader.close()
                    self._mark_lost(reader, segment, error)
                    self._pause(pause)
                    pause, warmed = min(2 * pause, _LONGEST_PAUSE), -1
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
            with self._changed:
                self._error = error
                self._changed.notify_all()
            reader.close()

    def _warm(self, number: int, reader: Connection, warmed: int) -> int:
        """Requests that a costly reader prepare its next pool: the first one needed, later the one after it.

        Args:
            number: the index of the reader.
            reader: the connection to the reader.
            warmed: the last pool that the reader was requested to prepare; -1 for none.

        Returns:
            The new value of ``warmed``.
        """
        if not reader.costly:
            return warmed
        with self._changed:
            needed = self._window[0].pool if self._window else len(self._pools)
        own = needed + (number - needed) % len(self._connections)
        pool = own if warmed < own else own + len(self._connections)
        if pool > warmed and pool < len(self._pools):
            reader.warm(self._split, self._order, self._pools[pool])
            return pool
        return warmed

    def _next_segment(self, number: int, reader: Connection) -> Segment | None:
        """Waits for and returns the first unassigned segment that this reader may serve; None at the end."""
        with self._changed:
            self._states[reader.address].requested_at = None
            while not self._closed:
                for place, segment in enumerate(self._unassigned):
                    if not reader.costly or self._may_serve(number, segment):
                        self._states[reader.address].requested_at = time.monotonic()
                        return self._unassigned.pop(place)
                self._changed.wait()
            return None

    def _may_serve(self, number: int, segment: Segment) -> bool:
        owner = segment.pool % len(self._connections)
        return owner == number or self._states[self._connections[owner].address].lost

    def _deliver(self, reader: Connection, segment: Segment, batch: Batch) -> bool:
        """Delivers a batch to the consumer; returns False if the consumer has stopped."""
        with self._changed:
            state = self._states[reader.address]
            self._last_arrival = state.requested_at = time.monotonic()
            if state.lost:
                state.lost = False
                self._messages.append(f"reader {reader.address}: back")
            segment.pending.popleft()
            segment.arrived.append(batch)
            self._changed.notify_all()
            return not self._closed

    def _mark_lost(self, reader: Connection, segment: Segment | None, error: BaseException) -> None:
        """Marks a reader as lost, and releases the pending part of its segment."""
        with self._changed:
            state = self._states[reader.address]
            state.failure, state.requested_at = first_line(error), None
            if not state.lost and not self._closed:
                state.lost = True
                self._messages.append(
                    f"reader {reader.address}: lost ({state.failure}); its rows are asked of the others"
                )
            if segment is not None and segment.pending:
                self._unassigned.append(segment)
                self._unassigned.sort(key=lambda each: each.number)
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._closed and (remaining := deadline - time.monotonic()) > 0:
                self._changed.wait(remaining)

    def _readers_lost_error(self) -> ReadersLost:
        def describe(state: _ReaderState) -> str:
            if state.requested_at is not None and not state.failure:
                return f"asked {time.monotonic() - state.requested_at:.0f} s ago, no answer yet"
            return state.failure or "never asked"

        listed = "\n  ".join(f"{address}: {describe(state)}" for address, state in self._states.items())
        return ReadersLost(
            f"no reader has sent a batch for {self._seconds:g} s\n  {listed}",
            "start them again (`ziggurat ingest`), or name others with --readers; run the same command to go on from "
            "the last checkpoint",
        )
