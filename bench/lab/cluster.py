"""Hosts as network namespaces behind a switch, each link shaped by the kernel's token bucket filter.

Ranks of one host meet over its loopback, at memory's speed; between hosts every byte crosses a veth pair that lets
``rate`` through in either direction. What crossed is counted by the kernel, so a figure of bytes is the wire's own.
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
MOST_HOSTS = 254
"""Addresses of the network that are a host's."""
_NETWORK = "10.77.0"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes over a stretch of time, summed over hosts, each counted where it was sent.

    Attributes:
        inter: over the links between hosts, headers of Ethernet, IP and TCP included.
        intra: over the hosts' loopbacks, where a packet may be as large as 64 KiB.
    """

    inter: int
    intra: int

    def __sub__(self, earlier: Traffic) -> Traffic:
        return Traffic(self.inter - earlier.inter, self.intra - earlier.intra)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a cluster looks like.

    Attributes:
        hosts: network namespaces, 1 to ``MOST_HOSTS``.
        rate: of each host's link, each way, as ``tc`` writes it: ``500mbit``.
        queue_ms: what a packet waits in its link's queue at most before the filter drops it.
    """

    hosts: int
    rate: str = "500mbit"
    queue_ms: int = 50


class Cluster:
    """Makes the namespaces and links on entering, and takes them away on leaving, whatever happened in between.

    Raises:
        EnvironmentMismatch: this machine or user cannot make network namespaces; the message gives the reason.
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
        """IPv4 of a host's link."""
        return f"{_NETWORK}.{host + 1}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """``command`` as it is run on ``host``."""
        return ["ip", "netns", "exec", self._host(host), *command]

    def traffic(self) -> Traffic:
        """What has been sent since the cluster was made."""
        counted = [(self._sent(host, LINK), self._sent(host, "lo")) for host in range(self.shape.hosts)]
        return Traffic(sum(link for link, _ in counted), sum(loop for _, loop in counted))

    def processes(self) -> list[int]:
        """Ids of what runs on the hosts."""
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
            _run(["ip", "-n", name, "link", "add", LINK, "type", "veth", "peer", "name", port, "netns", switch])
            _run(["ip", "-n", name, "address", "add", f"{self.address(host)}/24", "dev", LINK])
            _run(["ip", "-n", switch, "link", "set", port, "master", "br0"])
            for namespace, device in ((name, LINK), (switch, port)):
                _run(["ip", "-n", namespace, "link", "set", device, "up"])
                self._shape(namespace, device)

    def _shape(self, namespace: str, device: str) -> None:
        """At most ``rate`` out of ``device``; a burst of a quarter of a MiB holds the largest offloaded packets."""
        limit = ["rate", self.shape.rate, "burst", "256kb", "latency", f"{self.shape.queue_ms}ms"]
        _run(["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *limit])

    def _namespace(self, name: str) -> None:
        self._made.append(name)
        _run(["ip", "netns", "add", name])

    def _remove(self) -> None:
        while self._made:
            _ended(["ip", "netns", "del", self._made.pop()])


def unavailable() -> str | None:
    """Why this machine cannot hold a cluster; None where it can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found"
    if os.geteuid() != 0:
        return f"network namespaces need root, and this is user {os.geteuid()}"
    probe = f"zig{os.getpid()}probe"
    made = _ended(["ip", "netns", "add", probe])
    if made.returncode != 0:
        return f"`ip netns add` failed: {made.stderr.strip()}"
    try:
        limit = ["rate", "1mbit", "burst", "32kb", "latency", "50ms"]
        shaped = _ended(["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "tbf", *limit])
    finally:
        _ended(["ip", "netns", "del", probe])
    return None if shaped.returncode == 0 else f"`tc qdisc add … tbf` failed: {shaped.stderr.strip()}"


def _run(command: Sequence[str]) -> str:
    ended = _ended(command)
    if ended.returncode != 0:
        raise EnvironmentMismatch(
            f"`{' '.join(command)}` failed: {ended.stderr.strip()}", "see whether the kernel has veth, bridge and tbf"
        )
    return ended.stdout


def _ended(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """In a session of its own, where a terminal's Ctrl-C does not reach it. One that comes between a process' beginning
    and its session's ends it before the command has begun: then once more."""
    while True:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
        if ended.returncode not in (-signal.SIGINT, -signal.SIGTERM):
            return ended
