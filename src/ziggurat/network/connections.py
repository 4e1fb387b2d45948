"""Watches the connections of a server, and cuts those that take too much.

gRPC reads a request completely, of any size, before it asks whether to answer it, and waits for ever for a client that
does not take its answer; Arrow Flight offers no way to bound either. The kernel does: it counts the bytes that each
connection has received, and a connection that is shut down ends all its calls, which frees their threads. The
connections are found among the open files of this process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from ziggurat.network.limits import Limits
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import RefusalLog

_BYTES_RECEIVED = slice(128, 136)
"""``tcpi_bytes_received`` in Linux' ``struct tcp_info``: bytes received over the connection's life."""
_ANSWERED_PER_BYTE = 32
"""Bytes of an answer for which a client may send one: it reports what it has taken."""


@dataclass(slots=True)
class _Connection:
    """A connection as it was last seen.

    Attributes:
        inode: identifies the socket.
        active_at: when it last made a call, or was accepted.
        accounted: bytes that belong to its calls.
        unread: bytes received that do not.
        large_since: since when these are more than a request; None: they are not.
    """

    inode: int
    active_at: float
    accounted: int = 0
    unread: int = 0
    large_since: float | None = None


class Connections:
    """The connections that a server has accepted.

    Args:
        port: returns the port that the server listens on.
        limits: the bounds.
        log: gets a line for each connection that is cut.
        busy: returns the peers that are being answered.
    """

    def __init__(
        self, port: Callable[[], int], limits: Limits, log: RefusalLog, busy: Callable[[], Collection[Peer]]
    ) -> None:
        self._port, self._limits, self._log, self._busy = port, limits, log, busy
        self._known: dict[Peer, _Connection] = {}
        self._sockets: dict[int, Peer | None] = {}
        """Inode of each socket of this process, as last seen -> the peer if it is such a connection."""
        self._lock = threading.Lock()

    def account(self, peer: Peer, request_bytes: int = 0, answer_bytes: int = 0) -> None:
        """Notes what a peer may have sent: a request, or reports of what it has taken of an answer."""
        with self._lock:
            known = self._known.get(peer)
            if known is None:
                known = self._known[peer] = _Connection(0, 0.0)
            known.active_at = time.monotonic()
            known.accounted += request_bytes + answer_bytes // _ANSWERED_PER_BYTE

    def cut(self, peers: Collection[Peer]) -> None:
        """Ends the connections to these peers, and with them all their calls."""
        for found, peer, _ in self._open():
            if peer in peers:
                _shut_down(found)

    def cut_all(self) -> None:
        """Ends all connections."""
        for found, _, _ in self._open():
            _shut_down(found)

    def check(self) -> None:
        """Cuts the connections that exceed a bound; to be called about ten times a second."""
        now, limits = time.monotonic(), self._limits
        seen: dict[Peer, _Connection] = {}
        for found, peer, inode in self._open():
            received = _received(found)
            with self._lock:
                connection = self._known.get(peer)
                if connection is None or connection.inode not in {0, inode}:
                    connection = self._known[peer] = _Connection(inode, now)
                connection.inode = inode
                unread = connection.unread = max(0, received - connection.accounted)
                is_large = unread > limits.unread_bytes
                connection.large_since = (connection.large_since or now) if is_large else None
            seen[peer] = connection
            is_slow = connection.large_since is not None and now - connection.large_since >= limits.unread_s
            if unread > limits.burst_bytes or is_slow:
                self._log.add(peer, "flood", f"sent {unread:,} bytes that are no complete request; connection closed")
                _shut_down(found)
                connection.unread = 0
        with self._lock:
            self._known = {peer: each for peer, each in self._known.items() if peer in seen or now - each.active_at < 1}
        surplus = self._surplus(seen)
        if surplus:
            self.cut(surplus)

    def _surplus(self, seen: dict[Peer, _Connection]) -> set[Peer]:
        """Returns the peers to cut because there are too many connections, or too many bytes in all of them."""
        cut = set[Peer]()
        unread = sum(each.unread for each in seen.values())
        for peer in sorted(seen, key=lambda each: -seen[each].unread):
            if unread <= self._limits.all_unread_bytes:
                break
            unread -= seen[peer].unread
            cut.add(peer)
            self._log.add(peer, "flood", "all connections have sent too much that is no complete request; closed")
        hosts = Counter(peer.host for peer in seen)
        total = len(seen)
        if total > self._limits.connections or any(hosts[host] > self._limits.connections_per_host for host in hosts):
            busy = self._busy()
            for peer in sorted(seen, key=lambda each: (each in busy, seen[each].active_at)):
                if total > self._limits.connections or hosts[peer.host] > self._limits.connections_per_host:
                    total -= 1
                    hosts[peer.host] -= 1
                    cut.add(peer)
                    self._log.add(peer, "flood", "too many open connections; the one idle for longest is closed")
        return cut

    def _open(self) -> Iterator[tuple[socket.socket, Peer, int]]:
        """Yields a duplicate of each connection's socket, valid until the next one, with its peer and its inode."""
        sockets: dict[int, Peer | None] = {}
        for entry in os.scandir("/proc/self/fd"):
            inode = _socket_inode(int(entry.name))
            if inode is None:
                continue
            if inode in self._sockets and self._sockets[inode] is None:
                sockets[inode] = None
                continue
            with contextlib.suppress(OSError), contextlib.closing(_duplicate(int(entry.name))) as found:
                inode = os.fstat(found.fileno()).st_ino  # the number may be that of another file by now
                peer = self._sockets[inode] if inode in self._sockets else self._peer(found)
                sockets[inode] = peer
                if peer is not None:
                    yield found, peer, inode
        self._sockets = sockets

    def _peer(self, found: socket.socket) -> Peer | None:
        """Returns the peer of a connection that the server has accepted; None for any other socket."""
        with contextlib.suppress(OSError):  # it listens, or its peer is gone
            family = found.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
            if family not in {socket.AF_INET, socket.AF_INET6}:
                return None
            with socket.socket(family, socket.SOCK_STREAM, 0, os.dup(found.fileno())) as known:
                if known.getsockname()[1] == self._port():
                    return Peer.of_socket(known.getpeername())
        return None


def _socket_inode(descriptor: int) -> int | None:
    """Returns what identifies the socket of a descriptor; None if it is closed, or no socket."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_ino if stat.S_ISSOCK(status.st_mode) else None


def _duplicate(descriptor: int) -> socket.socket:
    """Returns another handle of a socket of this process, which stays this socket when the first handle is closed.

    Raises:
        OSError: it is closed.
    """
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, os.dup(descriptor))


def _received(found: socket.socket) -> int:
    information = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_RECEIVED.stop)
    return int.from_bytes(information[_BYTES_RECEIVED], "little")


def _shut_down(found: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other side was faster
        found.shutdown(socket.SHUT_RDWR)
