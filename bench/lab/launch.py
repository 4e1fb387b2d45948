"""Starts a command on every host of a cluster under torchrun, and ends it everywhere when it ends anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.lab.cluster import LINK, Cluster, Traffic

PORT = 29400
_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command went.

    Attributes:
        status: the first exit status that was not 0, or 0.
        seconds: until the last host was done.
        traffic: what the hosts sent meanwhile.
    """

    status: int
    seconds: float
    traffic: Traffic


def launch(
    cluster: Cluster,
    ranks: int,
    command: Sequence[str],
    say: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run ``command``, what torchrun takes behind its own options, with ``ranks`` processes on each host.

    Args:
        cluster: made.
        ranks: processes a host.
        command: a script and its arguments, or ``-m`` and a module's.
        say: is told each line that any host prints, the host before it.
        environment: added to this process's; gloo uses the hosts' links and every rank one thread unless it says so.
    """
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINK, **(environment or {})}
    before, started = cluster.traffic(), time.perf_counter()
    hosts = [
        subprocess.Popen(
            cluster.command(host, _torchrun(cluster, host, ranks, command)),
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        for host in range(cluster.shape.hosts)
    ]
    readers = [threading.Thread(target=_relay, args=(number, host, say)) for number, host in enumerate(hosts)]
    for reader in readers:
        reader.start()
    try:
        status = _watch(hosts)
    finally:
        _end(hosts)
        for reader in readers:
            reader.join()
    return Ended(status, time.perf_counter() - started, cluster.traffic() - before)


def _torchrun(cluster: Cluster, host: int, ranks: int, command: Sequence[str]) -> list[str]:
    where = ["--master-addr", cluster.address(0), "--master-port", str(PORT)]
    sizes = ["--nnodes", str(cluster.shape.hosts), "--node-rank", str(host), "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", *where, *sizes, *command]


def _relay(number: int, host: subprocess.Popen[str], say: Callable[[str], None]) -> None:
    assert host.stdout is not None
    with host.stdout as lines:
        for line in lines:
            say(f"[host {number}] {line.rstrip()}")


def _watch(hosts: Sequence[subprocess.Popen[str]]) -> int:
    """Wait until all hosts are done, or one has failed."""
    while True:
        statuses = [host.poll() for host in hosts]
        failed = [status for status in statuses if status]
        if failed:
            return failed[0]
        if all(status == 0 for status in statuses):
            return 0
        time.sleep(0.05)


def _end(hosts: Sequence[subprocess.Popen[str]]) -> None:
    """Ask what still runs to stop, then make it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [host for host in hosts if host.poll() is None]
        for host in left:
            os.killpg(host.pid, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        for host in left:
            try:
                host.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue
