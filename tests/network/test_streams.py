"""Places for answers: how many, how much memory, and who has to leave when others wait."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import replace

import pytest

from ziggurat.network.limits import Limits
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import RefusalLog, Refused
from ziggurat.network.reputation import PROVEN_BYTES, Reputation
from ziggurat.network.streams import AnswerStream, Streams

QUICK = Limits(
    streams=4, streams_per_connection=2, held_bytes=1000, stalled_s=0.0, pressed_s=0.0, unproven_pressed_s=0.0,
    patience_s=0.05,
)  # fmt: skip
PATIENT = replace(QUICK, stalled_s=600.0, patience_s=60.0)


def peer(host: int, port: int = 1) -> Peer:
    return Peer(f"10.0.0.{host}", port)


class Server:
    """Streams whose cut connections end their answers, as gRPC does."""

    def __init__(self, limits: Limits) -> None:
        self.log = RefusalLog()
        self.cut: list[Peer] = []
        self.reputation = Reputation()
        self.streams = Streams(limits, self.log, self.reputation, self._end)
        self.opened: list[AnswerStream] = []

    def open(self, host: int, port: int = 1, proven: bool = True) -> AnswerStream:
        if proven:
            self.reputation.taken(peer(host, port), PROVEN_BYTES)
        self.opened.append(self.streams.open(peer(host, port)))
        return self.opened[-1]

    def _end(self, peers: Collection[Peer]) -> None:
        self.cut += sorted(peers)
        for stream in self.opened:
            if stream.peer in peers:
                stream.close()


def test_places_are_bounded_by_connection_host_and_server() -> None:
    server = Server(QUICK)
    first = server.open(1)
    server.open(1)
    with pytest.raises(Refused, match="this connection has 2 unfinished requests already"):
        server.open(1)
    with pytest.raises(Refused, match="the server is busy: 2 requests are being answered"):
        server.open(1, port=2)  # half of the places are one host's
    server.open(2)
    server.open(3)
    with pytest.raises(Refused, match="the server is busy: 4 requests are being answered"):
        server.open(4)
    first.close()
    first.close()
    assert len(server.streams) == 3
    server.open(4)
    assert server.cut == []


def test_unproven_clients_have_few_places() -> None:
    server = Server(replace(QUICK, streams=16))
    for port in (1, 2):
        server.open(1, port, proven=False)
    with pytest.raises(Refused, match="the server is busy: 2 requests are being answered"):
        server.open(1, 3, proven=False)
    server.open(1, 4)
    server.open(2, 1, proven=False)
    server.opened[0].close()
    server.open(1, 3, proven=False)


def test_unproven_clients_do_not_displace_proven_connections() -> None:
    server = Server(replace(QUICK, streams=8))
    proven, unproven = server.open(1, 1), server.open(1, 2, proven=False)
    proven.sending()
    with pytest.raises(Refused, match="busy"):
        server.open(1, 3, proven=False)
    unproven.sending()
    server.open(1, 3, proven=False)
    assert server.cut == [unproven.peer]


def test_an_answer_that_nobody_takes_makes_place() -> None:
    server = Server(PATIENT)
    stalled, moving = server.open(1), server.open(1, port=2)
    stalled.sending()
    server.open(1, port=3)
    assert server.cut == [stalled.peer]
    assert moving in server.streams._open
    assert server.log.take() == ["refused 10.0.0.1:1: has not read its answer for 0 s; connection closed"]


def test_stalled_answers_of_other_hosts_stay_if_the_host_is_full() -> None:
    server = Server(QUICK)
    server.open(2).sending()
    server.open(1)
    server.open(1)
    with pytest.raises(Refused, match="busy"):
        server.open(1, port=2)
    assert server.cut == []


def test_a_place_that_becomes_free_is_given_to_who_waits() -> None:
    server = Server(PATIENT)
    places = [server.open(host) for host in (1, 2, 3, 4)]
    got: list[AnswerStream] = []
    thread = threading.Thread(target=lambda: got.append(server.open(5)))
    thread.start()
    while server.streams._waiting == 0:
        pass
    places[0].close()
    thread.join(30)
    assert got[0].peer == peer(5)


def test_few_may_wait() -> None:
    server = Server(PATIENT)
    for host in (1, 2, 3, 4):
        server.open(host)
    threads = [threading.Thread(target=lambda: server.open(5).close()) for _ in range(PATIENT.waiting)]
    for thread in threads:
        thread.start()
    while server.streams._waiting < PATIENT.waiting:
        pass
    with pytest.raises(Refused, match=r"and 8 wait"):
        server.open(6)
    server.opened[0].close()
    for thread in threads:
        thread.join(30)


def test_held_memory_is_bounded() -> None:
    server = Server(QUICK)
    one, two = server.open(1), server.open(2)
    one.hold(600)
    two.hold(400)
    one.made(500)
    assert server.streams.held_bytes == 900
    three = server.open(3)
    with pytest.raises(Refused, match="answers that were not taken yet hold 900 bytes"):
        three.hold(200)
    one.hold(100)  # in place of what it held before
    three.hold(200)
    two.close()
    assert server.streams.held_bytes == 300
    two.made(400)
    assert server.streams.held_bytes == 300, "a closed answer holds nothing"


def test_memory_of_answers_that_nobody_takes_is_taken_back() -> None:
    server = Server(PATIENT)
    stalled, empty, asking = server.open(1), server.open(2), server.open(3)
    stalled.hold(1000)
    stalled.sending()
    empty.sending()  # its part of the answer holds no memory that anyone needs
    asking.hold(1000)
    assert server.cut == [stalled.peer]


def test_a_part_larger_than_all_memory_is_made_alone() -> None:
    server = Server(QUICK)
    one, two = server.open(1), server.open(2)
    one.hold(5000)
    with pytest.raises(Refused, match="busy"):
        two.hold(1)
    one.close()
    two.hold(5000)


def test_stalled_answers_end() -> None:
    server = Server(QUICK)
    stalled, taken, new = server.open(1), server.open(2), server.open(3)
    stalled.sending()
    taken.sending()
    taken.taken()
    server.streams.end_stalled()
    server.streams.end_stalled()
    assert server.cut == [stalled.peer]
    assert {taken, new} == server.streams._open
