"""Starts a command on every host of a cluster under torchrun, and ends it everywhere when it ends anywhere."""

from __future__ import annotations

import contextlib
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
GRACE_SECONDS = 10.0
"""What hosts get to end by themselves, once asked."""

_FLAGS = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path")
"""Options of torchrun's that take no value and say how the command is run."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command went.

    Attributes:
        status: the first exit status that was not 0, or 0; also where it was stopped.
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
    stopped: Callable[[], bool] = lambda: False,
    grace: float = GRACE_SECONDS,
) -> Ended:
    """Runs ``command``, the part of a torchrun command after its own options, with ``ranks`` processes on each host.

    On return nothing runs on the hosts any more, whatever the processes have started.

    Args:
        cluster: made.
        ranks: processes a host.
        command: a script and its arguments, or ``-m`` and a module's.
        say: called with each line that a host prints, prefixed by the host.
        environment: added to this process's; gloo uses the hosts' links and every rank one thread unless it says so.
        stopped: asked again and again; once it says so, all hosts are ended.
        grace: seconds they get for that before they are killed.
    """
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINK, **(environment or {})}
    before, started = cluster.traffic(), time.perf_counter()
    hosts: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    try:
        for number in range(cluster.shape.hosts):
            if stopped():
                break
            host = subprocess.Popen(
                cluster.command(number, _torchrun(cluster, number, ranks, command)),
                env=settings,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            hosts.append(host)
            readers.append(threading.Thread(target=_relay, args=(number, host, say, stopped)))
            readers[-1].start()
        status = _watch(hosts, stopped)
    finally:
        _end(cluster, hosts, grace)
        for reader in readers:
            reader.join()
    return Ended(status, time.perf_counter() - started, cluster.traffic() - before)


def _torchrun(cluster: Cluster, host: int, ranks: int, command: Sequence[str]) -> list[str]:
    where = ["--master-addr", cluster.address(0), "--master-port", str(PORT)]
    sizes = ["--nnodes", str(cluster.shape.hosts), "--node-rank", str(host), "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", *where, *sizes, *separated(command)]


def separated(command: Sequence[str]) -> list[str]:
    """``command`` with ``--`` before its script or module, behind which torchrun takes no option for one of its own.

    Without it torchrun reads ``--run`` of a command as a shortened ``--run-path``. A command that has the ``--`` before
    or behind its script or module is left as it is, and so is one that begins with other options of torchrun's.
    """
    place = next((place for place, part in enumerate(command) if part not in _FLAGS), len(command))
    flags, rest = command[:place], command[place:]
    if not rest or rest[0].startswith("-") or rest[1:2] == ["--"]:
        return list(command)
    return [*flags, "--", *rest]


def _relay(number: int, host: subprocess.Popen[str], say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Tell what a host prints; of one that is being stopped what its ranks say, not how torchrun takes it."""
    assert host.stdout is not None
    quiet = False
    with host.stdout as lines:
        for line in lines:
            quiet = quiet or (stopped() and line.startswith("Traceback"))
            if not quiet and not (stopped() and "torch/distributed/elastic/" in line):
                say(f"[host {number}] {line.rstrip()}")


def _watch(hosts: Sequence[subprocess.Popen[str]], stopped: Callable[[], bool]) -> int:
    """Wait until all hosts are done, one has failed, or they are to stop."""
    while not stopped():
        statuses = [host.poll() for host in hosts]
        failed = [status for status in statuses if status]
        if failed:
            return failed[0]
        if all(status == 0 for status in statuses):
            break
        time.sleep(0.05)
    return 0


def _end(cluster: Cluster, hosts: Sequence[subprocess.Popen[str]], grace: float) -> None:
    """Ask what still runs to stop, then make it; ranks are no part of torchrun's session, and may outlive it."""
    left = [host for host in hosts if host.poll() is None]
    for host in left:
        os.killpg(host.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    for host in left:
        with contextlib.suppress(subprocess.TimeoutExpired):
            host.wait(max(0.0, deadline - time.monotonic()))
    while processes := cluster.processes():
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for host in hosts:
            host.poll()
        time.sleep(0.01)
    for host in hosts:
        host.wait()
