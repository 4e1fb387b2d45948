"""The machines for which a plan is made: hosts and devices, with their memory sizes and bandwidths.

These are plain figures, which ``training`` takes from the config or measures. Bandwidths are in bytes per second.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ziggurat.core.errors import ConfigError, nearest

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Device:
    """A device's figures from its data sheet.

    Attributes:
        memory_bytes: size of its memory.
        lookup_bandwidth: peak bandwidth of that memory.
        intra_bandwidth: bandwidth to the other devices of its host, one way.
    """

    memory_bytes: int
    lookup_bandwidth: float
    intra_bandwidth: float


DEVICES: dict[str, Device] = {
    "l4": Device(24 * 10**9, 300e9, 32e9),
    "v100": Device(32 * 10**9, 900e9, 150e9),
    "a100-40gb": Device(40 * 10**9, 1555e9, 300e9),
    "a100-80gb": Device(80 * 10**9, 2039e9, 300e9),
    "h100": Device(80 * 10**9, 3350e9, 450e9),
    "h200": Device(141 * 10**9, 4800e9, 450e9),
}
"""Figures from NVIDIA's data sheets. All are SXM modules, with half of NVLink's bandwidth as one-way, except the L4,
which is on PCIe 4."""


def known_device(name: str) -> Device:
    """Returns the device of that name.

    Raises:
        ConfigError: no such device is known; the message names the known ones.
    """
    if name in DEVICES:
        return DEVICES[name]
    close = nearest(name, DEVICES)
    hint = f"did you mean {close!r}? " if close else ""
    raise ConfigError(
        f"unknown device {name!r}; {hint}known: {', '.join(DEVICES)}",
        "name one of them, or declare memory and bandwidths of your own",
    )


@dataclass(frozen=True, slots=True)
class Topology:
    """Hosts with equal devices and one rank per device. Ranks are numbered host by host.

    Attributes:
        hosts: number of hosts.
        devices: number of devices per host.
        device: name of the device, shown to users.
        kind: torch's device type.
        memory_bytes: memory of one device.
        lookup_bandwidth: rate at which a device reads rows from its memory.
        intra_bandwidth: rate at which a device sends to, or receives from, the others of its host while all do so.
        inter_bandwidth: rate at which a host sends to, or receives from, other hosts; its devices share it evenly.
        assumed: which of these figures were neither declared nor measured, in words.
        slow_memory_bytes: slow memory of one device, in addition to ``memory_bytes``; 0 if there is none.
        slow_bandwidth: rate at which a device reads rows from its slow memory; 0 if there is none.
    """

    hosts: int
    devices: int
    device: str
    kind: DeviceKind
    memory_bytes: int
    lookup_bandwidth: float
    intra_bandwidth: float
    inter_bandwidth: float
    assumed: tuple[str, ...] = ()
    slow_memory_bytes: int = 0
    slow_bandwidth: float = 0.0

    def __post_init__(self) -> None:
        assert min(self.hosts, self.devices) >= 1, (self.hosts, self.devices)
        assert min(self.lookup_bandwidth, self.intra_bandwidth, self.inter_bandwidth) > 0
        assert (self.slow_memory_bytes > 0) == (self.slow_bandwidth > 0)
        assert self.slow_bandwidth <= self.lookup_bandwidth

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.hosts * self.devices

    def host(self, rank: int) -> int:
        """Returns the host of a rank."""
        return rank // self.devices

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """Returns the ranks of a host."""
        return tuple(range(host * self.devices, (host + 1) * self.devices))

    @property
    def device_inter_bandwidth(self) -> float:
        """A device's even share of its host's bandwidth to other hosts."""
        return self.inter_bandwidth / self.devices

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
