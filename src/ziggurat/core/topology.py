"""The machines that a plan is for: hosts, the devices of each, what they hold and how fast they read and talk.

Plain figures; who declares or measures them is ``training``'s business. Bytes are bytes, bandwidths bytes a second.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from ziggurat.core.errors import ConfigError, nearest

DeviceKind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Device:
    """What a data sheet says of a device.

    Attributes:
        memory_bytes: its own memory.
        lookup_bandwidth: of that memory, at its peak.
        intra_bandwidth: to the other devices of its host, one way.
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
"""NVIDIA's data sheets; SXM modules, whose NVLink is halved for one way, but for the L4 on PCIe 4."""


def known_device(name: str) -> Device:
    """The device of that name.

    Raises:
        ConfigError: no such device is known; those that are, are named.
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
    """Hosts of equal devices; ranks, one a device, count up host by host.

    Attributes:
        hosts: how many.
        devices: on each host.
        device: what one is, for people.
        kind: what torch calls it.
        memory_bytes: of one device.
        lookup_bandwidth: at which a device reads rows of its memory.
        intra_bandwidth: at which a device sends to, or gets from, the others of its host, all of them at it.
        inter_bandwidth: at which a host sends to, or gets from, other hosts; its devices share it evenly.
        assumed: of these figures, those that were neither declared nor measured, in words.
        slow_memory_bytes: of one device, beside the memory above; 0 where there is none.
        slow_bandwidth: at which a device reads rows of its slow memory; 0 where there is none.
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
        """Ranks in all."""
        return self.hosts * self.devices

    def host(self, rank: int) -> int:
        """The host that a rank is on."""
        return rank // self.devices

    def ranks_of(self, host: int) -> tuple[int, ...]:
        """The ranks of a host."""
        return tuple(range(host * self.devices, (host + 1) * self.devices))

    @property
    def device_inter_bandwidth(self) -> float:
        """A device's even share of its host's way to other hosts."""
        return self.inter_bandwidth / self.devices

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
