"""A cluster of network namespaces behind a switch, whose links are shaped by the kernel's token bucket filter.

Ranks of one host communicate over its loopback, at the speed of memory or of a given rate. Between hosts every byte
crosses a veth pair that is limited to ``rate`` in each direction. The kernel counts the bytes, so they include all
protocol headers.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from ziggurat.core.errors import EnvironmentMismatch

LINK = "eth0"
MAX_HOSTS = 254
"""The number of host addresses in the network."""
_NETWORK = "10.77.0"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes sent in a period, summed over hosts.

    Attributes:
        inter: bytes sent over the links between hosts, including Ethernet, IP and TCP headers.
        intra: bytes sent over the hosts' loopbacks, whose packets may be as large as 64 KiB.
    """

    inter: int
    intra: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.inter - earlier.inter, self.intra - earlier.intra)


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of a cluster and the speed of its links.

    Attributes:
        hosts: the number of network namespaces, 1 to ``MAX_HOSTS``.
        rate: the rate of each host's link, in each direction, in the notation of ``tc``: ``500mbit``.
        local_rate: the rate of each host's loopback, over which its ranks communicate; None for that of memory.
        queue_ms: the longest time that a packet waits in its link's queue before the filter drops it.
    """

    hosts: int
    rate: str = "500mbit"
    local_rate: str | None = None
    queue_ms: int = 50


class Cluster:
    """Creates the namespaces and links on entry to the context, and removes them on exit, also after an error.

    Raises:
        EnvironmentMismatch: this machine or user cannot create network namespaces; the message gives the reason.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._prefix = f"zig{os.getpid()}"
        self._made: list[str] = []

    def __enter__(self) -> Cluster:
        problem = unavailable()
        if problem is not None:
            raise EnvironmentMismatch(problem, "run the lab as root on Linux with iproute2 installed")
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, host: int) -> str:
        """Returns the IPv4 address of a host's link."""
        return f"{_NETWORK}.{host + 1}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs ``command`` on ``host``."""
        return ["ip", "netns", "exec", self._host(host), *command]

    def traffic(self) -> Traffic:
        """Returns the bytes sent since the cluster was created."""
        counted = [(self._sent(host, LINK), self._sent(host, "lo")) for host in range(self.shape.hosts)]
        return Traffic(sum(link for link, _ in counted), sum(loop for _, loop in counted))

    def processes(self) -> list[int]:
        """Returns the ids of the processes on the hosts."""
        return [int(process) for name in self._made for process in _run(["ip", "netns", "pids", name]).split()]

    def _sent(self, host: int, device: str) -> int:
        path = f"/sys/class/net/{device}/statistics/tx_bytes"
        return int(_run(self.command(host, ["cat", path])))

    def _host(self, host: int) -> str:
        return f"{self._prefix}h{host}"

    def _make(self) -> None:
        switch = f"{self._prefix}sw"
        self._namespace(switch)
        _run(["ip", "-n", switch, "link", "add", "br0", "type", "bridge"])
        _run(["ip", "-n", switch, "link", "set", "br0", "up"])
        for host in range(self.shape.hosts):
            name, port = self._host(host), f"p{host}"
            self._namespace(name)
            _run(["ip", "-n", name, "link", "set", "lo", "up"])
            if self.shape.local_rate is not None:
                self._shape(name, "lo", self.shape.local_rate)
            _run(["ip", "-n", name, "link", "add", LINK, "type", "veth", "peer", "name", port, "netns", switch])
            _run(["ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", LINK])
            _run(["ip", "-n", switch, "link", "set", port, "master", "br0"])
            for namespace, device in ((name, LINK), (switch, port)):
                _run(["ip", "-n", namespace, "link", "set", device, "up"])
                self._shape(namespace, device, self.shape.rate)

    def _shape(self, namespace: str, device: str, rate: str) -> None:
        """Limits what leaves ``device`` to a rate; a burst of 256 KiB admits the largest offloaded packets."""
        limit = ["rate", rate, "burst", "256kb", "latency", f"{self.shape.queue_ms}ms"]
        _run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit])

    def _namespace(self, name: str) -> None:
        self._made.append(name)
        _run(["ip", "netns", "add", name])

    def _remove(self) -> None:
        while self._made:
            _completed(["ip", "netns", "del", self._made.pop()])


def unavailable() -> str | None:
    """Returns why this machine cannot emulate a cluster, or None if it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found"
    if os.geteuid() != 0:
        return f"network namespaces need root, and this is user {os.geteuid()}"
    probe = f"zig{os.getpid()}probe"
    made = _completed(["ip", "netns", "add", probe])
    if made.returncode != 0:
        return f"`ip netns add` failed: {made.stderr.strip()}"
    try:
        limit = ["rate", "1mbit", "burst", "32kb", "latency", "50ms"]
        shaped = _completed(["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "tbf", *limit])
    finally:
        _completed(["ip", "netns", "del", probe])
    return None if shaped.returncode == 0 else f"`tc qdisc add … tbf` failed: {shaped.stderr.strip()}"


def _run(command: Sequence[str]) -> str:
    completed = _completed(command)
    if completed.returncode != 0:
        raise EnvironmentMismatch(
            f"`{' '.join(command)}` failed: {completed.stderr.strip()}",
            "check that the kernel has veth, bridge and tbf",
        )
    return completed.stdout


def _completed(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command in its own session, out of reach of a terminal's Ctrl-C.

    A signal between the start of the process and the creation of its session ends it before the command runs. In that
    case the command is run again.
    """
    while True:
        completed = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
        if completed.returncode not in (-signal.SIGINT, -signal.SIGTERM):
            return completed
