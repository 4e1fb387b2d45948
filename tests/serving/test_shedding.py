"""Requests that are refused before they are read, while the queue stands."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import time
from collections.abc import Generator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.serving.http_kit import Exported, exported, served_here
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.batching.admission import Admission
from ziggurat.serving.http.batching.batcher import Batcher
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused, overloaded

LIMITS = ServingLimits(head_s=1.0)


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


class Server:
    """A server in this process, whose queue stands when it is told to."""

    def __init__(self, url: str, log: io.StringIO) -> None:
        self.url, self.log = url, log
        self.stands = False

    def raw(self, sent: bytes) -> socket.socket:
        parts = urlsplit(self.url)
        connection = socket.create_connection((parts.hostname, parts.port), timeout=30)
        connection.sendall(sent)
        return connection

    def metric(self, line: str) -> float:
        text = httpx.get(f"{self.url}/metrics", trust_env=False).text
        found = [each for each in text.splitlines() if each.startswith(line)]
        return float(found[0].split()[-1]) if found else 0.0


@pytest.fixture
def server(export: Exported, monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    log = io.StringIO()
    standing: list[Server] = []
    monkeypatch.setattr(
        Batcher, "overload", lambda batcher: overloaded("the rows that wait", 0.2) if standing[0].stands else None
    )
    with served_here(export.model, LIMITS, AccessLog(log)) as url:
        standing.append(Server(url, log))
        yield standing[0]


def request(path: str, body: bytes, more: str = "", version: str = "1.1") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nhost: localhost\r\n{more}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Returns the status, the headers and the body of the next answer of a connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        part = connection.recv(65536)
        assert part, received
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += connection.recv(65536)
    return int(first.split()[1]), headers, body


def test_a_connection_is_refused_while_the_queue_stands_and_serves_afterwards(server: Server, export: Exported) -> None:
    rows = json.dumps({"rows": export.rows[:3]}).encode()
    before = server.metric('ziggurat_refused_total{code="overloaded"}')
    with server.raw(request("/v1/predict", rows)) as connection:
        assert answer(connection)[0] == 200
        server.stands = True
        for path in ("/v1/predict", "/v1/predict?a=1", "/v1/rank", "/v2/models/a/infer"):
            connection.sendall(request(path, b"no JSON"))  # nobody reads it
            status, headers, body = answer(connection)
            assert (status, headers["retry-after"], headers["content-type"]) == (503, "1", "application/json")
            assert json.loads(body)["code"] == "overloaded"
            assert len(headers["x-request-id"]) == 32
            assert "connection" not in headers
        server.stands = False
        connection.sendall(request("/v1/predict", rows))
        status, _, body = answer(connection)
        assert status == 200
        expected = httpx.post(f"{server.url}/v1/predict", content=rows, trust_env=False).json()
        assert json.loads(body)["predictions"] == expected["predictions"]
    assert server.metric('ziggurat_refused_total{code="overloaded"}') - before == 4
    assert server.metric('ziggurat_requests_total{endpoint="/v1/predict",status="503"}') >= 2
    until = time.monotonic() + 60
    while sum(told(server)) < 4:  # a second after the first of them
        assert time.monotonic() < until, server.log.getvalue()
        time.sleep(0.05)
    assert sum(told(server)) == 4


def told(server: Server) -> list[int]:
    """Returns the numbers of refused requests that the log has."""
    lines = map(json.loads, server.log.getvalue().splitlines())
    return [line["requests"] for line in lines if line["event"] == "shed"]


def test_what_is_no_prediction_is_answered_in_an_overload(server: Server) -> None:
    server.stands = True
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/"):
        assert httpx.get(f"{server.url}{path}", trust_env=False).status_code == 200
    assert httpx.get(f"{server.url}/v1/predict", trust_env=False).status_code == 405


def test_the_refusal_waits_for_the_body_and_not_for_ever(server: Server) -> None:
    server.stands = True
    whole = request("/v1/predict", b"x" * 300_000)
    with server.raw(whole[:200_000]) as connection:
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(30)
        connection.sendall(whole[200_000:])
        assert answer(connection)[0] == 503
    began = time.monotonic()
    with server.raw(whole[:200_000]) as connection:
        assert answer(connection)[0] == 408
        assert connection.recv(1) == b""
    assert 0.5 < time.monotonic() - began < 20


def test_a_client_that_closes_or_asks_first_is_answered(server: Server, export: Exported) -> None:
    server.stands = True
    for sent in (request("/v1/predict", b"{}", version="1.0"), request("/v1/predict", b"{}", "connection: close\r\n")):
        with server.raw(sent) as connection:
            status, headers, _ = answer(connection)
            assert (status, headers["connection"]) == (503, "close")
            assert connection.recv(1) == b""
    rows = json.dumps({"rows": export.rows[:1]}).encode()
    head, body = request("/v1/predict", rows, "expect: 100-continue\r\n").split(b"\r\n\r\n")
    with server.raw(head + b"\r\n\r\n") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert answer(connection)[0] == 200  # its queue does not stand, only this test says so


def test_a_pipelined_request_is_answered_in_its_turn(server: Server, export: Exported) -> None:
    rows = json.dumps({"rows": export.rows[:2]}).encode()
    with server.raw(request("/v1/predict", rows) + request("/v2/models/unknown/infer", b"{}")) as connection:
        assert answer(connection)[0] == 200
        server.stands = True
        connection.settimeout(30)
        assert answer(connection)[0] in (400, 404, 422, 503)


def test_a_queue_that_stands_refuses_whatever_comes() -> None:
    admission = Admission(ServingLimits(overload_wait_s=0.02))
    admission.lately.add(100, 0.1)
    assert admission.overload(10.0, 50, 50) is None, "a burst"
    assert isinstance(admission.overload(10.5, 50, 50), HttpRefused)
    assert admission.overload(10.6, 10, 50) is None, "short enough"
    with pytest.raises(HttpRefused, match="requests come faster than they are answered"):
        admission.admit(10.7, 100.0, 1, 50, 50)
    assert admission.admit(12.0, 100.0, 1, 0, 0) == 0.0


def test_a_batcher_tells_of_its_own_queue(export: Exported) -> None:
    batcher = Batcher(export.model, ServingLimits())
    try:
        assert batcher.overload() is None
        asked: list[tuple[int, int]] = []
        batcher.admission.overload = lambda now, queued, busy: asked.append((queued, busy))  # type: ignore[method-assign]

        async def predicted() -> None:
            await batcher.predict(lambda model: model.predict_parts(export.rows[:2]), 2, time.monotonic() + 60)

        asyncio.run(predicted())
        batcher.overload()
        assert asked[-1] == (0, 0)
    finally:
        batcher.close()
