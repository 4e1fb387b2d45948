"""An address without a cluster is reported at once; Ray itself would retry for minutes."""

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
    """Runs a server that sends ``answer`` to its first client; yields its port. None: it accepts no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as caller:
                caller.sendall(answer or b"")

        if answer is not None:
            threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server at this address is not the head of a cluster"),
        (b"", "not the head of a cluster|Connection reset"),
        (None, "timed out"),
    ],
)
def test_a_server_that_is_no_head_is_rejected(
    answer: bytes | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "_CONNECT_S", 0.3)
    with (
        listening(answer) as port,
        pytest.raises(EnvironmentMismatch, match=rf"--ray 127\.0\.0\.1:{port}: .*({message})"),
    ):
        RayCluster(f"127.0.0.1:{port}").__enter__()


def test_a_closed_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(EnvironmentMismatch, match=r"Connection refused[\s\S]*give the head.s address"):
        RayCluster(f"127.0.0.1:{port}").__enter__()
