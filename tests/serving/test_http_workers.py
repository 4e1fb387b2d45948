"""Workers share a socket; one that dies is replaced, and SIGTERM answers what was admitted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import ziggurat.serving.http.serve as serving
from tests.commands import ziggurat
from tests.serving.http_kit import Exported, Running, exported, running
from ziggurat.core.errors import EnvironmentMismatch


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def workers(server: Running) -> set[int]:
    """Returns the workers that answer; a connection of its own for each request reaches all of them."""
    found: set[int] = set()
    for _ in range(60):
        with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
            found.add(client.get("/admin/status").json()["worker"])
    return found


def events(server: Running, name: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in server.lines().splitlines()]
    return [each for each in entries if each["event"] == name]


def test_a_worker_that_dies_is_replaced_and_no_connection_is_refused(export: Exported) -> None:
    body = {"rows": export.rows[:5]}
    with running(export.folder, "--workers", "2") as server:
        before = workers(server)
        assert server.process.pid not in before
        expected = server.client.post("/v1/predict", json=body).json()["predictions"]
        killed = min(before)
        os.kill(killed, signal.SIGKILL)
        answers = 0
        deadline = time.monotonic() + 120
        while not events(server, "worker_started"):
            assert time.monotonic() < deadline, server.lines()
            try:
                found = httpx.post(f"{server.url}/v1/predict", json=body, trust_env=False, timeout=120)
            except (httpx.RemoteProtocolError, httpx.ReadError):
                continue  # it was with the worker that died
            assert found.json()["predictions"] == expected
            answers += 1
            time.sleep(0.01)
        assert answers
        lost = events(server, "worker_lost")
        assert [(each["worker"], each["exit_status"]) for each in lost] == [(killed, -9)]
        assert killed not in workers(server)
        text = server.client.get("/metrics").text
        total = sum(
            float(each)
            for each in re.findall(r'ziggurat_requests_total\{endpoint="/v1/predict",status="200"\} (\S+)', text)
        )
        assert total >= answers  # of all workers, that which died included
        graph, deadline = export.folder / "dense.json", time.monotonic() + 120
        graph.rename(hidden := graph.with_name("hidden"))
        try:
            os.kill(min(workers(server)), signal.SIGKILL)
            while not (reasons := [each["reason"] for each in events(server, "worker_lost") if "reason" in each]):
                assert time.monotonic() < deadline, server.lines()
                time.sleep(0.05)
        finally:
            hidden.rename(graph)
        assert reasons[0].startswith(f"{graph}: is missing, ")
        assert httpx.post(f"{server.url}/v1/predict", json=body, trust_env=False).json()["predictions"] == expected
        assert server.stop() == 0
        assert "Traceback" not in server.lines()


def raw_request(url: str, body: dict[str, Any]) -> tuple[bytes, bytes]:
    """Returns the head and the body of a request to predict."""
    data = json.dumps(body).encode()
    host = url.removeprefix("http://")
    head = f"POST /v1/predict HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode(), data


def answered(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Reads the answer of a connection that the server then closes; returns its status and body."""
    parts: list[bytes] = []
    while data := connection.recv(1 << 16):
        parts.append(data)
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_answers_what_was_sent(export: Exported, count: int) -> None:
    large = {"rows": [export.rows[k % len(export.rows)] for k in range(8_000)]}
    small = {"rows": export.rows[:5]}
    with running(export.folder, "--workers", str(count)) as server, contextlib.ExitStack() as stack:
        port = int(server.url.rpartition(":")[2])

        def connection() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=120))

        opened = [connection() for _ in range(6)]
        for each in opened[:3]:
            each.sendall(b"".join(raw_request(server.url, large)))
        head, body = raw_request(server.url, small)
        opened[3].sendall(head + body[:10])
        opened[4].sendall(head[:10])
        server.process.send_signal(signal.SIGTERM)
        opened[3].sendall(body[10:])
        opened[4].sendall(head[10:] + body)
        opened[5].sendall(head + body)  # was accepted, or waits in the kernel, and has sent nothing so far
        sizes = [8_000] * 3 + [5] * 3
        for each, size in zip(opened, sizes, strict=True):
            status, found = answered(each)
            assert status == 200, found
            assert len(found["predictions"]["click"]) == size
        assert server.process.wait(60) == 0


def test_a_missing_library_is_named(export: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None if name in {"fastapi", "uvicorn"} else name)
    with pytest.raises(EnvironmentMismatch, match=r"needs FastAPI, uvicorn, which are not installed"):
        serving.serve(export.folder)


def test_without_an_export_or_an_address_it_says_so(export: Exported, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        status, _, said = ziggurat("serve", *arguments)
        assert status == 1, said
        assert "Traceback" not in said
        return said

    assert "no export (export.json is missing)" in error(str(tmp_path))
    assert "no export (export.json is missing)" in error(str(tmp_path), "--workers", "2", "--port", "0")
    assert "needs tokens (--token-file) and TLS" in error(str(export.folder), "--host", "0.0.0.0")
    with running(export.folder) as server:
        port = server.url.rpartition(":")[2]
        said = error(str(export.folder), "--port", port)
        assert f"127.0.0.1:{port}: cannot be listened on" in said
        assert error(str(export.folder), "--port", port, "--memory", "1GB") == said, "before tables are planned"
