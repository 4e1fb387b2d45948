"""Replicas on a real Ray cluster of two hosts, each a node of this machine with a CPU of its own."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serving.http_kit import exported
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.serving.cluster.ray_serve import serve_on_ray

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ziggurat[ray]'")
pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'ray[serve]'")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray takes 127.0.0.1 for this host's outer address, unless it is told to use the loopback interface only.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        # Both nodes have one address here, so that one of their proxies serves; it would prefer its own replica.
        patch.setenv("RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING", "0")
        patch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()  # a cluster writes its address there, and does not make the folder
        own = {"node_ip_address": "127.0.0.1"}
        made: Any = Cluster(initialize_head=True, head_node_args={**own, "num_cpus": 1, "temp_dir": folder})
        made.add_node(num_cpus=1, **own)
        yield made
        made.shutdown()


def test_replicas_on_two_hosts_give_the_bits_of_the_export(cluster: Any) -> None:
    export = exported()
    command = ["serve", str(export.folder), "--ray", cluster.address, "--workers", "2"]
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        command += ["--port", str(bound.getsockname()[1]), "--no-log"]
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "ziggurat", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        stack.callback(process.kill)  # before its end is waited for, whatever fails
        assert process.stdout is not None
        assert process.stderr is not None
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), process.stderr.read()[-3000:]
        rows = export.rows[:50]
        expected = export.predictions(rows)[:, 0]
        workers = set[int]()
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            alone = client.post("/v1/predict", json={"rows": rows}).json()
            np.testing.assert_array_equal(np.float32(alone["predictions"]["click"]), expected)

            def ask(_: int) -> int:
                found = client.post("/v1/predict", json={"rows": rows}).json()
                np.testing.assert_allclose(found["predictions"]["click"], expected, rtol=0, atol=1e-6)  # batched
                return client.get("/v1/status").json()["worker"]

            with ThreadPoolExecutor(16) as pool:  # a request goes to the replica with fewer of them
                for _ in range(20):
                    workers.update(pool.map(ask, range(32)))
                    if len(workers) == 2:
                        break
            assert len(workers) == 2
            second = subprocess.run(
                [sys.executable, "-m", "ziggurat", *command], capture_output=True, text=True, timeout=120
            )
            assert second.returncode == 1
            assert "serves an application named 'ziggurat' already" in second.stderr
            refused = client.post("/v1/predict", json={"rows": [{"item": 1}]})  # the first one goes on
            assert (refused.status_code, refused.json()["code"]) == (422, "missing_columns")
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def test_an_address_without_a_cluster_is_named() -> None:
    with pytest.raises(EnvironmentMismatch, match=r"127\.0\.0\.1:1: no Ray cluster can be reached"):
        serve_on_ray(exported().folder, "127.0.0.1:1")


def test_port_0_is_refused() -> None:
    with pytest.raises(ConfigError, match="--port 0"):
        serve_on_ray(exported().folder, "auto", port=0)
