"""Fair turns at work that many clients ask for: who has had least is next.

A client's *share* is the time that its work has taken so far. Hosts are equal among each other, and so are the
connections of one host, however many requests each has waiting. Time without a request is not credited: who comes back
starts with the share of the one whose turn is now.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Hashable
from dataclasses import dataclass, field

from ziggurat.network.peer import Peer

_PRUNE_ABOVE = 4096


class _Shares:
    """The shares of some clients, and the share at which newcomers start."""

    def __init__(self) -> None:
        self._used: dict[Hashable, float] = {}
        self._start = 0.0

    def of(self, key: Hashable) -> float:
        return max(self._used.get(key, 0.0), self._start)

    def begin(self, key: Hashable) -> None:
        """Notes that it is the turn of ``key``, which had the least share of those waiting."""
        self._start = self._used[key] = self.of(key)
        if len(self._used) > _PRUNE_ABOVE:
            self._used = {each: used for each, used in self._used.items() if used > self._start}

    def add(self, key: Hashable, seconds: float) -> None:
        self._used[key] = self.of(key) + seconds


@dataclass(slots=True, eq=False)
class _Waiting:
    peer: Peer
    number: int
    ready: threading.Event = field(default_factory=threading.Event)


class Turns:
    """Lets ``slots`` pieces of work be done at a time.

    Args:
        slots: pieces of work at a time.
    """

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._arrived = 0
        self._hosts, self._peers = _Shares(), _Shares()

    @contextlib.contextmanager
    def turn(self, peer: Peer) -> Generator[None]:
        """Waits for a turn of ``peer``, which lasts as long as the ``with`` block."""
        with self._lock:
            self._arrived += 1
            waiting = _Waiting(peer, self._arrived)
            self._waiting.append(waiting)
            self._start_next()
        waiting.ready.wait()
        started = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._hosts.add(peer.host, time.monotonic() - started)
                self._peers.add(peer, time.monotonic() - started)
                self._free += 1
                self._start_next()

    def _start_next(self) -> None:
        while self._free and self._waiting:
            chosen = min(
                self._waiting, key=lambda each: (self._hosts.of(each.peer.host), self._peers.of(each.peer), each.number)
            )
            self._waiting.remove(chosen)
            self._hosts.begin(chosen.peer.host)
            self._peers.begin(chosen.peer)
            self._free -= 1
            chosen.ready.set()
