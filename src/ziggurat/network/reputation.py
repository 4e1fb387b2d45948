"""Which connections have proven themselves, by taking whole answers.

Connections cost a client nothing, and neither do answers that it does not read. What it has received and read it has
paid for, with its own network and time. So those that have taken answers are preferred to unproven clients, however
many connections these open.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from ziggurat.network.peer import Peer

PROVEN_BYTES = 2**20
"""Bytes of whole answers that a connection must have taken."""
_REMEMBERED = 4096
"""Connections whose answers are remembered, the last ones."""


class Reputation:
    """The bytes of whole answers that connections have taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_bytes: OrderedDict[Peer, int] = OrderedDict()

    def taken(self, peer: Peer, size_bytes: int) -> None:
        """Notes that a connection has taken a whole answer of this size."""
        with self._lock:
            self._taken_bytes[peer] = self._taken_bytes.get(peer, 0) + size_bytes
            self._taken_bytes.move_to_end(peer)
            if len(self._taken_bytes) > _REMEMBERED:
                self._taken_bytes.popitem(last=False)

    def is_proven(self, peer: Peer) -> bool:
        """Returns whether a connection has proven itself."""
        return self._taken_bytes.get(peer, 0) >= PROVEN_BYTES
