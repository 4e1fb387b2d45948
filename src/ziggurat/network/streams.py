"""The answers that a server is giving: how many, how much memory they hold, and which of them nobody takes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection

from ziggurat.network.limits import Limits
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import RefusalLog, Refused
from ziggurat.network.reputation import Reputation


class AnswerStream:
    """An answer that is being given to a peer, as a place among the :class:`Streams`."""

    def __init__(self, streams: Streams, peer: Peer, proven: bool) -> None:
        self.peer, self.proven = peer, proven
        self.held_bytes = 0
        self.sending_since: float | None = None
        """When a part of the answer was handed to gRPC, which the client has not taken yet; None: there is none."""
        self.cut = False
        self._streams = streams

    def hold(self, size_bytes: int) -> None:
        """Reserves memory for the next part of the answer, in place of the last; waits until there is some.

        Raises:
            Refused: others hold all of it, and go on taking their answers.
        """
        self._streams.hold(self, size_bytes)

    def made(self, size_bytes: int) -> None:
        """Corrects the reserved memory to the size of the part that was made."""
        self._streams.made(self, size_bytes)

    def sending(self) -> None:
        """Notes that a part of the answer waits for the client."""
        self.sending_since = time.monotonic()

    def taken(self) -> None:
        """Notes that the client has taken the part."""
        self.sending_since = None

    def close(self) -> None:
        """Gives the place back; may be called more than once."""
        self._streams.close(self)


class Streams:
    """All answers that a server is giving.

    Who waits for a place is not woken whenever memory is given back, which happens with each part of each answer:
    dozens of requests that wait would take the time of those that are answered.

    Args:
        limits: the bounds.
        log: gets a line for each answer that is ended.
        reputation: which connections have proven themselves.
        cut: ends the connections to peers, with all their answers.
    """

    def __init__(
        self, limits: Limits, log: RefusalLog, reputation: Reputation, cut: Callable[[Collection[Peer]], None]
    ) -> None:
        self._limits, self._log, self._reputation, self._cut = limits, log, reputation, cut
        self._lock = threading.RLock()
        self._place_given_back = threading.Condition(self._lock)
        self._memory_given_back = threading.Condition(self._lock)
        self._open: set[AnswerStream] = set()
        self._connections: Counter[Peer] = Counter()
        self._hosts: Counter[str] = Counter()
        self._unproven: Counter[str] = Counter()
        self._held_bytes = 0
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def peers(self) -> set[Peer]:
        """Returns the peers that are being answered."""
        with self._lock:
            return {each.peer for each in self._open}

    def open(self, peer: Peer) -> AnswerStream:
        """Returns a place for another answer to ``peer``; waits for one if there is none.

        Raises:
            Refused: there is no place, and those who have one go on taking their answers.
        """
        proven = self._reputation.is_proven(peer)
        with self._lock:
            self._check_connection(peer)
            if self._is_full(peer, proven):
                self._wait_for_place(peer, proven)
                self._check_connection(peer)
            stream = AnswerStream(self, peer, proven)
            self._open.add(stream)
            self._connections[peer] += 1
            self._hosts[peer.host] += 1
            self._unproven[peer.host] += not proven
            return stream

    def close(self, stream: AnswerStream) -> None:
        with self._lock:
            if stream not in self._open:
                return
            host = stream.peer.host
            makes_room = not stream.proven or self._is_full(stream.peer, proven=True)
            self._open.remove(stream)
            self._held_bytes -= stream.held_bytes
            stream.held_bytes = 0
            self._connections[stream.peer] -= 1
            self._hosts[host] -= 1
            self._unproven[host] -= not stream.proven
            if not self._connections[stream.peer]:
                del self._connections[stream.peer]
            if not self._hosts[host]:
                del self._hosts[host], self._unproven[host]
            if makes_room:
                self._place_given_back.notify_all()
            self._memory_given_back.notify_all()

    def hold(self, stream: AnswerStream, size_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= stream.held_bytes
            stream.held_bytes = 0
            self._memory_given_back.notify_all()
            if not self._fits(size_bytes):
                self._wait(
                    self._memory_given_back,
                    lambda: not self._fits(size_bytes),
                    lambda each: each.held_bytes > 0,
                    self._limits.pressed_s,
                    f"the server is busy: answers that were not taken yet hold {self._held_bytes:,} bytes",
                )
            stream.held_bytes = size_bytes
            self._held_bytes += size_bytes

    def made(self, stream: AnswerStream, size_bytes: int) -> None:
        with self._lock:
            if stream in self._open:
                self._held_bytes += size_bytes - stream.held_bytes
                stream.held_bytes = size_bytes
                self._memory_given_back.notify_all()

    def end_stalled(self) -> None:
        """Ends the answers that were not taken for too long; to be called every second or more often."""
        with self._lock:
            self._end(self._limits.stalled_s, lambda each: True)

    def _check_connection(self, peer: Peer) -> None:
        most = self._limits.streams_per_connection
        if self._connections[peer] >= most:
            raise Refused("busy", f"this connection has {most} unfinished requests already")

    def _wait_for_place(self, peer: Peer, proven: bool) -> None:
        """Waits for a place. Stalled answers to unproven clients are ended for it, and for a proven one all others."""
        message = f"the server is busy: {len(self._open)} requests are being answered"
        if self._waiting >= self._limits.waiting:
            raise Refused("busy", f"{message}, and {self._waiting} wait")
        self._waiting += 1
        try:
            self._wait(
                self._place_given_back,
                lambda: self._is_full(peer, proven),
                lambda each: (
                    (proven or not each.proven)
                    and (each.peer.host == peer.host or len(self._open) >= self._limits.streams)
                ),
                self._limits.pressed_s if proven else self._limits.unproven_pressed_s,
                message,
            )
        finally:
            self._waiting -= 1

    def _fits(self, size_bytes: int) -> bool:
        return self._held_bytes + size_bytes <= self._limits.held_bytes or not self._held_bytes

    def _is_full(self, peer: Peer, proven: bool) -> bool:
        limits = self._limits
        return (
            len(self._open) >= limits.streams
            or self._hosts[peer.host] >= limits.streams_per_host
            or (not proven and self._unproven[peer.host] >= limits.unproven_streams_per_host)
        )

    def _wait(
        self,
        given_back: threading.Condition,
        crowded: Callable[[], bool],
        in_the_way: Callable[[AnswerStream], bool],
        stalled_s: float,
        message: str,
    ) -> None:
        """Waits until there is space, for which answers that stand in the way and are stalled so long are ended.

        Raises:
            Refused: there is no space after a while; tells ``message``.
        """
        deadline = time.monotonic() + self._limits.patience_s
        while crowded():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise Refused("busy", message)
            self._end(stalled_s, in_the_way)
            given_back.wait(min(remaining, 0.1))

    def _end(self, seconds: float, chosen: Callable[[AnswerStream], bool]) -> None:
        now = time.monotonic()
        peers = set[Peer]()
        for stream in self._open:
            since = stream.sending_since
            if since is not None and now - since > seconds and not stream.cut and chosen(stream):
                stream.cut = True
                peers.add(stream.peer)
                self._log.add(
                    stream.peer, "stalled", f"has not read its answer for {now - since:.0f} s; connection closed"
                )
        if peers:
            self._cut(peers)
