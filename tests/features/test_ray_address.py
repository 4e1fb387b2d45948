"""An address without a cluster behind it is told at once; Ray itself tries for minutes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Generator

import pytest

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.features.preparation import ray_cluster
from ziggurat.features.preparation.ray_cluster import RayCluster

pytest.importorskip("ray", reason="needs Ray: pip install 'ziggurat[ray]'")


@contextlib.contextmanager
def listening(answer: bytes | None) -> Generator[int]:
    """The port of who answers everybody so; None: who takes nobody's call."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as caller:
                caller.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "who listens there is no head of a cluster"),
        (b"", "no head of a cluster|Connection reset"),
        (None, "timed out"),
    ],
)
def test_who_is_no_head(answer: bytes | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "_CONNECT_S", 0.3)  # who takes no call is waited for so long
    with listening(answer) as port, pytest.raises(EnvironmentMismatch, match=rf"--ray 127\.0\.0\.1:{port}: .*({told})"):
        RayCluster(f"127.0.0.1:{port}").__enter__()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(EnvironmentMismatch, match=r"Connection refused[\s\S]*name the head as `ray start` printed it"):
        RayCluster(f"127.0.0.1:{port}").__enter__()
