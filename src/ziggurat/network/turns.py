"""Fair turns at work that many clients ask for: who has had least is next.

A client's *share* is the time that its work has taken so far. Hosts are equal among each other, and so are the
connections of one host, however many requests each has waiting. Time without a request is not credited: who comes back
starts with the share of the one whose turn is now.

Most of the time belongs to connections that have proven themselves (:mod:`ziggurat.network.reputation`). Those that
open streams and do not read them share the rest, however many they are.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Hashable
from dataclasses import dataclass, field

from ziggurat.network.peer import Peer
from ziggurat.network.reputation import Reputation

_PROVEN_WEIGHT = 4.0
"""How many times as much time as all others together the proven connections have together."""
_PRUNE_ABOVE = 4096


class _Shares:
    """The shares of those that compete with each other, and the share at which newcomers start."""

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


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


@dataclass(slots=True, eq=False)
class _Waiting:
    """A piece of work that waits for its turn."""

    peer: Peer
    proven: bool
    number: int
    gate: threading.Lock = field(default_factory=_closed_gate)
    """Is opened once, when it is its turn; much cheaper than an event."""

    @property
    def levels(self) -> tuple[tuple[Hashable, Hashable], ...]:
        """Whom it competes with, and as what: its class with the other, its host with others of the class, and its
        connection with others of the host."""
        host = (self.proven, self.peer.host)
        return ((), self.proven), (self.proven, host), (host, self.peer)


class Turns:
    """Lets ``slots`` pieces of work be done at a time.

    Args:
        slots: pieces of work at a time.
        reputation: which connections have proven themselves.
    """

    def __init__(self, slots: int, reputation: Reputation) -> None:
        self._free, self._reputation = slots, reputation
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._arrived = 0
        self._shares: defaultdict[Hashable, _Shares] = defaultdict(_Shares)

    @contextlib.contextmanager
    def turn(self, peer: Peer) -> Generator[None]:
        """Waits for a turn of ``peer``, which lasts as long as the ``with`` block."""
        with self._lock:
            self._arrived += 1
            waiting = _Waiting(peer, self._reputation.is_proven(peer), self._arrived)
            self._waiting.append(waiting)
            self._start_next()
        waiting.gate.acquire()
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - started
            with self._lock:
                for rivals, name in waiting.levels:
                    weight = _PROVEN_WEIGHT if name is True else 1.0
                    self._shares[rivals].add(name, seconds / weight)
                self._free += 1
                self._start_next()

    def _start_next(self) -> None:
        while self._free and self._waiting:
            chosen = min(self._waiting, key=self._priority)
            self._waiting.remove(chosen)
            for rivals, name in chosen.levels:
                self._shares[rivals].begin(name)
            self._free -= 1
            chosen.gate.release()
        if len(self._shares) > _PRUNE_ABOVE:
            self._shares.clear()

    def _priority(self, waiting: _Waiting) -> tuple[float, ...]:
        """Returns a key of which the least is next."""
        return (*(self._shares[rivals].of(name) for rivals, name in waiting.levels), waiting.number)
