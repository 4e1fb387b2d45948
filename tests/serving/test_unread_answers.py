"""A client that takes no answer is ended, and holds a server's memory no longer."""

from __future__ import annotations

import contextlib
import socket
import threading

import httpx
import pytest

from tests.serving.http_kit import exported, served_here
from ziggurat.serving.http.connection import BoundedConnection
from ziggurat.serving.http.limits import ServingLimits

MOST_BYTES = 32 * 2**20
"""Far more than the kernel holds for a client."""


def test_a_client_that_takes_no_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    request = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    lost, ended = BoundedConnection.connection_lost, threading.Event()
    with served_here(exported().model, ServingLimits(unread_s=0.3)) as url, socket.socket() as client:
        size = len(httpx.get(f"{url}/openapi.json", trust_env=False, timeout=60).content)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = url.removeprefix("http://").split(":")
        client.connect((host, int(port)))

        def watched(self: BoundedConnection, exc: Exception | None) -> None:
            if self.client == client.getsockname():  # its kernel does not tell a client that takes nothing
                ended.set()
            lost(self, exc)

        monkeypatch.setattr(BoundedConnection, "connection_lost", watched)
        client.settimeout(60)
        with contextlib.suppress(ConnectionError):
            client.sendall(request * (MOST_BYTES // size))
        assert ended.wait(20), "the connection is still open"
        assert httpx.get(f"{url}/v2", trust_env=False, timeout=60).status_code == 200
        taken = 0
        with contextlib.suppress(ConnectionError):
            while part := client.recv(1 << 20):
                taken += len(part)
        assert taken < MOST_BYTES // 2, "what was not taken in time is lost"
