"""Runs a command under torchrun on every host of a cluster, and stops all hosts if a host fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.benchmark import Context
from bench.contestant import ROOT
from bench.lab.cluster import LINK, Cluster, Shape, Traffic
from ziggurat.core.errors import EnvironmentMismatch

PORT = 29400
GRACE_SECONDS = 10.0
"""The time that hosts have to stop by themselves after SIGTERM."""

_FLAGS = ("-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path")
"""The options of torchrun without a value that determine how the command is run."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a command.

    Attributes:
        status: the first exit status other than 0; 0 if all hosts succeeded or were stopped on request.
        seconds: the time until the last host ended.
        traffic: the bytes that the hosts sent in that time.
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
) -> Outcome:
    """Runs ``command`` under torchrun with ``ranks`` processes on each host.

    When it returns, no process runs on the hosts any more, including processes that the ranks have started.

    Args:
        cluster: the cluster, which is in its context.
        ranks: the number of processes per host.
        command: a script with its arguments, or ``-m`` and a module with its arguments.
        say: a function that is called with each line that a host prints, prefixed with the host's number.
        environment: variables added to those of this process; without others, gloo uses the hosts' links and each rank
            has one thread.
        stopped: a function that is polled; all hosts are stopped when it returns True.
        grace: seconds from SIGTERM until the hosts are killed.
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
    return Outcome(status, time.perf_counter() - started, cluster.traffic() - before)


def _torchrun(cluster: Cluster, host: int, ranks: int, command: Sequence[str]) -> list[str]:
    where = ["--master-addr", cluster.address(0), "--master-port", str(PORT)]
    sizes = ["--nnodes", str(cluster.shape.hosts), "--node-rank", str(host), "--nproc-per-node", str(ranks)]
    return [sys.executable, "-m", "torch.distributed.run", *where, *sizes, *separated(command)]


def separated(command: Sequence[str]) -> list[str]:
    """Returns ``command`` with ``--`` before its script or module, so that torchrun does not parse the later options.

    Otherwise torchrun parses an option such as ``--run`` as an abbreviation of its own ``--run-path``. A command with
    ``--`` before or after its script or module is returned unchanged, as is a command that begins with other options
    of torchrun.
    """
    place = next((place for place, part in enumerate(command) if part not in _FLAGS), len(command))
    flags, rest = command[:place], command[place:]
    if not rest or rest[0].startswith("-") or rest[1:2] == ["--"]:
        return list(command)
    return [*flags, "--", *rest]


def _relay(number: int, host: subprocess.Popen[str], say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Passes on the lines that a host prints, without torchrun's messages about hosts that are being stopped."""
    assert host.stdout is not None
    quiet = False
    with host.stdout as lines:
        for line in lines:
            quiet = quiet or (stopped() and line.startswith("Traceback"))
            if not quiet and not (stopped() and "torch/distributed/elastic/" in line):
                say(f"[host {number}] {line.rstrip()}")


def _watch(hosts: Sequence[subprocess.Popen[str]], stopped: Callable[[], bool]) -> int:
    """Waits until all hosts have ended, a host has failed, or a stop is requested; returns the exit status."""
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
    """Sends SIGTERM to the hosts, then SIGKILL to all processes left.

    Ranks are not in torchrun's session and may outlive it.
    """
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


def measured_in_cluster(context: Context, shape: Shape, ranks: int, worker: str, spec: Mapping[str, Any]) -> Any:
    """Returns what the first rank of a fresh cluster wrote as JSON.

    Args:
        context: the settings of the run; lines with milliseconds a step are told.
        shape: the shape of the cluster.
        ranks: ranks of a host.
        worker: the module that each rank runs, with the files of the specification and of the answer.
        spec: the specification, of JSON values.

    Raises:
        EnvironmentMismatch: a rank ended with another status than 0; the message has the last lines.
    """
    output: list[str] = []

    def collect(line: str) -> None:
        output.append(line)
        if "ms a step" in line:
            context.say(line)

    with tempfile.TemporaryDirectory(dir=context.cache, prefix="lab-") as folder, Cluster(shape) as cluster:
        given, out = Path(folder) / "spec.json", Path(folder) / "out.json"
        given.write_text(json.dumps(spec), encoding="utf-8")
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        ended = launch(cluster, ranks, ["-m", worker, str(given), str(out)], collect, path)
        if ended.status != 0:
            raise EnvironmentMismatch(
                f"the lab ended with status {ended.status}:\n" + "\n".join(output[-15:]), "see the output of its ranks"
            )
        return json.loads(out.read_text(encoding="utf-8"))
