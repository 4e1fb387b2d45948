"""Connections prove themselves by taking answers; only the last ones are remembered."""

from __future__ import annotations

from ziggurat.network.peer import Peer
from ziggurat.network.reputation import PROVEN_BYTES, Reputation


def test_answers_add_up() -> None:
    reputation = Reputation()
    one, two = Peer("10.0.0.1", 1), Peer("10.0.0.1", 2)
    assert not reputation.is_proven(one)
    reputation.taken(one, PROVEN_BYTES - 1)
    assert not reputation.is_proven(one)
    reputation.taken(one, 1)
    assert reputation.is_proven(one)
    assert not reputation.is_proven(two)


def test_few_connections_are_remembered() -> None:
    reputation = Reputation()
    for port in range(10_000):
        reputation.taken(Peer("10.0.0.1", port), PROVEN_BYTES)
    assert not reputation.is_proven(Peer("10.0.0.1", 0))
    assert reputation.is_proven(Peer("10.0.0.1", 9_999))
