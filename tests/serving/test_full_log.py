"""A log that cannot be written, as on a full disk, costs its lines and nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.serving.http_kit import exported

FULL = Path("/dev/full")


@pytest.mark.parametrize("workers", [1, 2])
def test_requests_are_answered_and_workers_replaced(workers: int) -> None:
    export = exported()
    command = [sys.executable, "-m", "ziggurat", "serve", str(export.folder), "--port", "0", "--no-compile"]
    with FULL.open("w") as full:
        process = subprocess.Popen(
            [*command, "--workers", str(workers)], stdout=subprocess.PIPE, stderr=full, text=True
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        expected = export.predictions(export.rows[:1])[:, 0].tolist()
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            connections = set[tuple[str, int]]()
            for _ in range(5):
                found = client.post("/v1/predict", json={"rows": export.rows[:1]})
                assert found.json()["predictions"]["click"] == expected
                connections.add(found.extensions["network_stream"].get_extra_info("client_addr"))
            assert len(connections) == 1, "a connection stays open"
            lost = re.search(r"^ziggurat_log_lines_lost_total (\S+)", client.get("/metrics").text, re.MULTILINE)
            assert lost is not None
            assert float(lost[1]) >= 5
            worker = client.get("/admin/status").json()["worker"]
        if workers > 1:
            os.kill(worker, signal.SIGKILL)
            seen, until = {worker}, time.monotonic() + 120
            while len(seen) < 3:  # the other one, and that which takes its place
                assert time.monotonic() < until
                assert process.poll() is None, "the parent ends with its log"
                try:
                    seen.add(json.loads(httpx.get(f"{url}/admin/status", timeout=60, trust_env=False).text)["worker"])
                except (httpx.RemoteProtocolError, httpx.ReadError):
                    continue  # it was with the worker that died
        process.terminate()
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
