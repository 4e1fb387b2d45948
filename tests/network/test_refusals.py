"""Lines about refused requests: few, whatever a client sends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ziggurat.network import refusals
from ziggurat.network.peer import Peer
from ziggurat.network.refusals import RefusalLog

ONE, TWO = Peer("10.0.0.1", 5), Peer("10.0.0.2", 5)


def test_one_line_per_host_and_kind_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: now))
    log = RefusalLog()
    assert log.add(ONE, "bad", "first")
    for port in range(1000):
        assert not log.add(Peer("10.0.0.1", port), "bad", "more")
    assert log.add(TWO, "bad", "another host")
    assert log.add(ONE, "secret", "another kind")
    assert log.take() == [
        "refused 10.0.0.1:5: first",
        "refused 10.0.0.2:5: another host",
        "refused 10.0.0.1:5: another kind",
    ]
    assert log.take() == []
    now = 111.0
    assert log.add(ONE, "bad", "later")
    assert log.take() == ["refused 10.0.0.1:5: later (1,000 more before)"]


def test_many_hosts_take_little_memory() -> None:
    log = RefusalLog()
    for number in range(10_000):
        log.add(Peer(f"10.1.{number // 256}.{number % 256}", 1), "bad", "refused")
    assert len(log._recent) < 300
    assert len(log.take()) < 100


@pytest.mark.parametrize(
    ("text", "peer", "shown"),
    [
        ("ipv4:127.0.0.1:4711", Peer("127.0.0.1", 4711), "127.0.0.1:4711"),
        ("ipv6:%5B::1%5D:4711", Peer("::1", 4711), "[::1]:4711"),
        ("ipv6:%5B::ffff:10.0.0.1%5D:80", Peer("10.0.0.1", 80), "10.0.0.1:80"),
        ("unix:", Peer("unix:", 0), "[unix:]:0"),
    ],
)
def test_peers_have_one_spelling(text: str, peer: Peer, shown: str) -> None:
    assert Peer.of_grpc(text) == peer
    assert str(peer) == shown
    assert Peer.of_socket(("::ffff:127.0.0.1", 4711, 0, 0)) == Peer.of_grpc("ipv4:127.0.0.1:4711")
