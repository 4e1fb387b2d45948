"""Connections that send too much, or are too many, are cut: with real sockets on loopback."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ziggurat.network.connections import Connections
from ziggurat.network.limits import Limits
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import RefusalLog

LIMITS = Limits(unread_bytes=10_000, unread_s=0.0, burst_bytes=100_000, all_unread_bytes=250_000, connections=8)


class Listener:
    """A server that accepts connections and reads nothing, watched by ``connections``."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.log = RefusalLog()
        self.busy = set[Peer]()
        self.connections = self.watched(LIMITS)
        self.accepted: list[socket.socket] = []

    def watched(self, limits: Limits) -> Connections:
        return Connections(lambda: self.port, limits, self.log, lambda: self.busy)

    def connect(self) -> tuple[socket.socket, Peer]:
        client = socket.create_connection(("127.0.0.1", self.port))
        self.accepted.append(self.socket.accept()[0])
        return client, Peer(*client.getsockname())


@pytest.fixture
def listener() -> Iterator[Listener]:
    with contextlib.ExitStack() as stack:
        made = Listener()
        stack.callback(lambda: [each.close() for each in (made.socket, *made.accepted)])
        yield made


def send(client: socket.socket, accepted: socket.socket, count: int) -> None:
    """Sends ``count`` bytes, and reads them, so that the kernel counts them as received."""
    left = count
    while left:
        part = min(left, 10_000)
        client.sendall(b"x" * part)
        accepted.recv(part, socket.MSG_WAITALL)
        left -= part


def is_cut(client: socket.socket) -> bool:
    client.settimeout(10)
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_what_belongs_to_requests_does_not_count(listener: Listener) -> None:
    client, peer = listener.connect()
    with client:
        for _ in range(10):
            listener.connections.account(peer, request_bytes=9_000)
            send(client, listener.accepted[0], 9_500)
            listener.connections.check()
        assert not is_cut(client)
        listener.connections.account(peer, answer_bytes=32 * 5_000)
        listener.connections.check()
        assert not is_cut(client)


def test_a_slow_endless_request_is_cut(listener: Listener) -> None:
    client, peer = listener.connect()
    with client:
        patient = listener.watched(replace(LIMITS, unread_s=600.0))
        send(client, listener.accepted[0], 20_000)
        for _ in range(3):
            patient.check()
        assert not is_cut(client), "it may be a request that is about to be complete"
        listener.connections.check()
        assert is_cut(client)
        assert listener.log.take() == [
            f"refused {peer}: sent 20,000 bytes that are no complete request; connection closed"
        ]


def test_a_fast_endless_request_is_cut_at_once(listener: Listener) -> None:
    good, _ = listener.connect()
    bad, _ = listener.connect()
    with good, bad:
        send(good, listener.accepted[0], 9_000)
        send(bad, listener.accepted[1], 110_000)
        listener.connections.check()
        listener.connections.check()
        assert is_cut(bad)
        assert not is_cut(good)


def test_all_connections_together_are_bounded(listener: Listener) -> None:
    clients = [listener.connect()[0] for _ in range(4)]
    for number, accepted in enumerate(listener.accepted):
        send(clients[number], accepted, 70_000 + number)
    listener.watched(replace(LIMITS, unread_s=600.0)).check()
    assert [is_cut(each) for each in clients] == [False, False, False, True], "the one that sent most"
    for each in clients:
        each.close()


def test_connections_of_a_host_are_bounded_and_idle_ones_leave_first(listener: Listener) -> None:
    clients: list[tuple[socket.socket, Peer]] = []
    for _ in range(4):  # half of all for one host
        clients.append(listener.connect())
        listener.connections.check()
    listener.busy.add(clients[0][1])
    listener.connections.account(clients[1][1], request_bytes=1)
    for _ in range(2):
        clients.append(listener.connect())
    listener.connections.check()
    assert [is_cut(client) for client, _ in clients] == [False, False, True, True, False, False]
    for client, _ in clients:
        client.close()


def test_a_port_number_that_is_used_again_starts_anew(listener: Listener) -> None:
    client, peer = listener.connect()
    listener.connections.account(peer, request_bytes=10**9)
    listener.connections.check()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # so that the port is free at once
    client.close()
    listener.accepted.pop().close()
    again = socket.socket()
    again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    again.bind(peer)
    again.connect(("127.0.0.1", listener.port))
    with again:
        listener.accepted.append(listener.socket.accept()[0])
        send(again, listener.accepted[0], 110_000)
        listener.connections.check()
        listener.connections.check()
        assert is_cut(again), "the old connection's requests do not count for the new one"


def test_other_sockets_of_the_process_are_left_alone(listener: Listener) -> None:
    client, _ = listener.connect()
    other = Listener()
    other_client, _ = other.connect()
    with client, other_client, other.socket, other.accepted[0]:
        listener.connections.cut_all()
        assert is_cut(client)
        assert not is_cut(other_client)
        listener.socket.settimeout(10)
        listener.connect()[0].close()  # it still listens
