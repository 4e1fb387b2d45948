"""Fair turns: hosts and connections that had least are next, and idle time is not credited."""

from __future__ import annotations

import threading

from ziggurat.network.peer import Peer
from ziggurat.network.reputation import PROVEN_BYTES, Reputation
from ziggurat.network.turns import Turns, _Shares

A, B, C = Peer("10.0.0.1", 1), Peer("10.0.0.1", 2), Peer("10.0.0.2", 1)


def turns_of(slots: int) -> Turns:
    return Turns(slots, Reputation())


class Work:
    """Requests for turns, made in a known order while all turns are taken."""

    def __init__(self, turns: Turns) -> None:
        self.done: list[Peer] = []
        self._turns = turns
        self._threads: list[threading.Thread] = []

    def request(self, peer: Peer) -> None:
        before = len(self._turns._waiting)
        self._threads.append(threading.Thread(target=self._run, args=(peer,)))
        self._threads[-1].start()
        while len(self._turns._waiting) == before:
            pass

    def finish(self) -> list[Peer]:
        for thread in self._threads:
            thread.join()
        return self.done

    def _run(self, peer: Peer) -> None:
        with self._turns.turn(peer):
            self.done.append(peer)


def test_a_client_with_many_requests_waits_for_others() -> None:
    turns = turns_of(1)
    work = Work(turns)
    with turns.turn(A):
        for peer in (A, A, A, B, C):
            work.request(peer)
    # A has just had a turn, so host 2 is next, then the other connection of host 1
    assert work.finish() == [C, B, A, A, A]


def test_hosts_are_equal_however_many_connections_they_have() -> None:
    turns = turns_of(1)
    turns._shares[False].add((False, C.host), 1.0)
    work = Work(turns)
    with turns.turn(Peer("10.0.0.9", 1)):
        work.request(C)
        work.request(A)
        work.request(B)
    assert work.finish() == [A, B, C]


def test_connections_that_took_answers_come_before_those_that_did_not() -> None:
    turns = turns_of(1)
    turns._reputation.taken(C, PROVEN_BYTES - 1)
    turns._reputation.taken(B, PROVEN_BYTES - 1)
    turns._reputation.taken(B, 1)
    work = Work(turns)
    unproven = [Peer("10.0.0.1", port) for port in range(10, 20)]
    with turns.turn(A):  # the share of the others is now the greater one
        for peer in (*unproven, C, B):
            work.request(peer)
    assert work.finish()[0] == B


def test_unproven_clients_have_a_part_of_the_time() -> None:
    turns = turns_of(1)
    turns._reputation.taken(B, PROVEN_BYTES)
    turns._shares[()].add(True, 10.0)  # as of much work of those that have proven themselves
    work = Work(turns)
    with turns.turn(Peer("10.0.0.9", 1)):
        work.request(B)
        work.request(A)
        work.request(A)
    assert work.finish() == [A, A, B]


def test_turns_are_given_up_when_the_work_fails() -> None:
    turns = turns_of(1)
    for _ in range(3):
        try:
            with turns.turn(A):
                raise KeyError
        except KeyError:
            pass
    with turns.turn(B):
        pass


def test_several_turns_at_a_time() -> None:
    turns = turns_of(2)
    work = Work(turns)
    with turns.turn(A), turns.turn(A):
        work.request(B)
        assert not work.done
    assert work.finish() == [B]


def test_idle_time_is_not_credited() -> None:
    shares = _Shares()
    for _ in range(100):
        shares.begin("busy")
        shares.add("busy", 1.0)
    assert shares.of("newcomer") == 99.0, "the share of the one whose turn came last"
    shares.begin("newcomer")
    assert shares.of("newcomer") < shares.of("busy")


def test_shares_of_clients_that_are_gone_are_forgotten() -> None:
    shares = _Shares()
    for number in range(100_000):
        shares.begin(number)
        shares.add(number, 1e-6)
        shares.begin(-1)
        shares.add(-1, 1e-6)
    assert len(shares._used) < 10_000
