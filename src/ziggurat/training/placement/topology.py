"""Resolves the topology that a config declares; missing figures come from data sheets or measurements."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from ziggurat.core.control_group import memory_limits
from ziggurat.core.errors import ConfigError
from ziggurat.core.topology import DeviceKind, Topology, known_device
from ziggurat.planning.config import TopologyConfig

BETWEEN_HOSTS = 1.25e9
"""Default bandwidth between hosts in bytes per second: 10 Gbit/s. Plans that assume it say so."""

_FIGURES = ("memory", "lookup_bandwidth", "intra_bandwidth")


def resolve_topology(
    config: TopologyConfig,
    kind: DeviceKind,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory_bytes: int | None = None,
) -> Topology:
    """Returns the topology that ``planning.topology`` describes.

    Args:
        config: the section.
        kind: the kind of device that training runs on, for ``device: local``.
        hosts: number of hosts, in place of the config's; a run passes its own.
        devices: number of devices per host, likewise.
        memory_bytes: memory of a device, in place of the config's.

    Raises:
        ConfigError: a number is not positive; a figure is missing for ``device: cpu``; slow memory is faster than fast.
    """
    for name, number in (("hosts", hosts), ("devices", devices), ("memory", memory_bytes)):
        if number is not None and number <= 0:
            raise ConfigError(f"{name}: must be greater than 0; received {number}", f"give more, or leave {name} out")
    hosts = hosts or config.hosts or 1
    local = config.device == "local"
    devices = devices or config.devices or (torch.cuda.device_count() if local and kind == "cuda" else 1)
    given = {"memory": memory_bytes or config.memory, **{name: getattr(config, name) for name in _FIGURES[1:]}}
    missing = [name for name in _FIGURES if given[name] is None]
    if local:
        found = _measure(kind, devices, missing)
    elif config.device == "cpu":
        _check_complete(missing)
        found, kind = {}, "cpu"
    else:
        sheet, kind = known_device(config.device), "cuda"
        found = dict(zip(_FIGURES, (sheet.memory_bytes, sheet.lookup_bandwidth, sheet.intra_bandwidth), strict=True))
    memory, lookup, intra = (float(given[name] or found[name]) for name in _FIGURES)
    between, assumed = config.inter_bandwidth, ()
    if between is None and hosts > 1:
        assumed = ("10 Gbit/s between hosts are assumed; declare planning.topology.inter_bandwidth",)
    name = f"this machine's {kind}" if local else config.device
    slow_memory, slow_bandwidth = config.slow_memory or 0, config.slow_bandwidth or 0.0
    if slow_bandwidth > lookup:
        raise ConfigError(
            f"planning.topology.slow_bandwidth: {slow_bandwidth:.3g} bytes a second are more than the {lookup:.3g} of "
            "lookup_bandwidth, at which the device reads its fast memory",
            "swap the two memories, or correct the figures",
        )
    return Topology(
        hosts,
        devices,
        name,
        kind,
        int(memory),
        lookup,
        intra,
        between or BETWEEN_HOSTS,
        assumed,
        slow_memory,
        slow_bandwidth,
    )


def _check_complete(missing: list[str]) -> None:
    if missing:
        raise ConfigError(
            f"planning.topology: for a cpu that is not this machine's, {', '.join(missing)} must be given",
            "add them, or set planning.topology.device: local to measure this machine",
        )


def _measure(kind: DeviceKind, devices: int, names: list[str]) -> dict[str, float]:
    """Measures figures of a device of this machine; CPU devices share memory and its bandwidth equally."""
    probes: dict[str, Callable[[], float]] = {
        "cpu": {
            "memory": lambda: memory_limit() / devices,
            "lookup_bandwidth": lambda: lookup_bandwidth("cpu") / devices,
            "intra_bandwidth": loopback_bandwidth,
        },
        "cuda": {
            "memory": lambda: torch.cuda.get_device_properties(0).total_memory,
            "lookup_bandwidth": lambda: lookup_bandwidth("cuda"),
            "intra_bandwidth": cuda_copy_bandwidth,
        },
    }[kind]
    return {name: probes[name]() for name in names}


def memory_limit(root: Path = Path("/")) -> int:
    """Returns the memory of this machine in bytes, used or free, or the limit of the control group if it is lower."""
    total = next(
        int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    return min([total, *(limit for limit, _ in memory_limits(root))])


def lookup_bandwidth(device: str, rows: int = 2**19, ids: int = 2**17) -> float:
    """Returns the bytes of rows that random forward lookups read per second, with rows of 256 bytes; two digits."""
    random = torch.Generator().manual_seed(0)
    table_RD = torch.zeros(rows, 64, device=device)
    ids_L = torch.randint(rows, (ids,), generator=random).to(device)
    offsets_N = torch.arange(0, ids, 8, device=device)

    def lookup() -> None:
        F.embedding_bag(ids_L, table_RD, offsets_N, mode="sum")
        if device == "cuda":
            torch.cuda.synchronize()

    return _rate(lookup, ids * 256)


def loopback_bandwidth(size: int = 2**24) -> float:
    """Returns the bytes per second through a local socket, as used by gloo's ranks of one host; two digits."""
    left, right = socket.socketpair()
    payload, buffer = bytes(size), bytearray(size)

    def transfer() -> None:
        sender = threading.Thread(target=left.sendall, args=(payload,))
        sender.start()
        view, received = memoryview(buffer), 0
        while received < size:
            received += right.recv_into(view[received:])
        sender.join()

    with left, right:
        return _rate(transfer, size)


def cuda_copy_bandwidth(size: int = 2**28) -> float:
    """Returns the bytes per second from one GPU to another, or to host memory if there is only one; two digits."""
    source = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    single = torch.cuda.device_count() == 1
    target = torch.zeros(size, dtype=torch.uint8, device="cpu" if single else "cuda:1", pin_memory=single)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return _rate(copy, size)


def _rate(work: Callable[[], None], size: int, repeats: int = 5) -> float:
    """Returns ``size`` over the seconds of the fastest of some calls, to two digits; the first call is a warm-up."""
    best = float("inf")
    for call in range(repeats + 1):
        started = time.perf_counter()
        work()
        if call:
            best = min(best, time.perf_counter() - started)
    return float(f"{size / best:.1e}")
