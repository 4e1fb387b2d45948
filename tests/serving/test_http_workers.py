"""Workers share a socket; one that dies is replaced, and SIGTERM answers what was admitted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import ziggurat.serving.http.serve as serving
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
        assert server.stop() == 0
        assert "Traceback" not in server.lines()


@pytest.mark.parametrize("count", [1, 2])
def test_sigterm_answers_what_was_admitted(export: Exported, count: int) -> None:
    body = {"rows": [export.rows[k % len(export.rows)] for k in range(8_000)]}
    statuses: list[int] = []
    with running(export.folder, "--workers", str(count)) as server:

        def ask() -> None:
            response = httpx.post(f"{server.url}/v1/predict", json=body, trust_env=False, timeout=120)
            statuses.append(response.status_code if len(response.json()["predictions"]["click"]) == 8_000 else 0)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for each in threads:
            each.start()
        deadline = time.monotonic() + 60
        while 'endpoint="/v1/predict"' not in (text := server.client.get("/metrics").text) and not re.search(
            r"ziggurat_queue_rows(\{[^}]*\})? [1-9]", text
        ):
            assert time.monotonic() < deadline
        assert server.stop() == 0
        for each in threads:
            each.join()
    assert statuses == [200, 200, 200]


def test_a_missing_library_is_named(export: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None if name in {"fastapi", "uvicorn"} else name)
    with pytest.raises(EnvironmentMismatch, match=r"needs FastAPI, uvicorn, which are not installed"):
        serving.serve(export.folder)


def test_without_an_export_or_an_address_it_says_so(export: Exported, tmp_path: Path) -> None:
    def error(*arguments: str) -> str:
        command = [sys.executable, "-m", "ziggurat", "serve", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert found.returncode == 1, found.stderr
        assert "Traceback" not in found.stderr
        return found.stderr

    assert "no export (export.json is missing)" in error(str(tmp_path))
    assert "no export (export.json is missing)" in error(str(tmp_path), "--workers", "2", "--port", "0")
    assert "needs tokens (--token-file) and TLS" in error(str(export.folder), "--host", "0.0.0.0")
    with running(export.folder) as server:
        port = server.url.rpartition(":")[2]
        assert f"127.0.0.1:{port}: cannot be listened on" in error(str(export.folder), "--port", port)
