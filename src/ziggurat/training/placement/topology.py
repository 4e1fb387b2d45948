"""The topology that a config declares, its gaps filled from data sheets or measured on this machine."""

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
"""Bytes a second between hosts where nothing is declared: 10 Gbit/s, which is said of each plan made with it."""

_FIGURES = ("memory", "lookup_bandwidth", "intra_bandwidth")


def resolve_topology(
    config: TopologyConfig,
    kind: DeviceKind,
    *,
    hosts: int | None = None,
    devices: int | None = None,
    memory_bytes: int | None = None,
) -> Topology:
    """What ``planning.topology`` describes.

    Args:
        config: the section.
        kind: what training runs on, for ``device: local``.
        hosts: in place of the config's; of a run, those it has.
        devices: on each host, likewise.
        memory_bytes: of a device, in place of the config's.

    Raises:
        ConfigError: no hosts, devices or bytes; ``device: cpu`` without all figures; slow memory faster than fast.
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
        found = _measured(kind, devices, missing)
    elif config.device == "cpu":
        found, kind = _nothing(missing), "cpu"
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
            "exchange the two memories, or correct the figures",
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


def _nothing(missing: list[str]) -> dict[str, float]:
    if missing:
        raise ConfigError(
            f"planning.topology: of a cpu that is not this machine's, {', '.join(missing)} must be given",
            "add them, or set planning.topology.device: local to measure this machine",
        )
    return {}


def _measured(kind: DeviceKind, devices: int, names: list[str]) -> dict[str, float]:
    """Of this machine, each device having an even share of what its CPU devices share."""
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
    """Bytes of memory of this machine, or of the control group if that is less, whoever uses them now."""
    total = next(
        int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal:")
    )
    return min([total, *(limit for limit, _ in memory_limits(root))])


def lookup_bandwidth(device: str, rows: int = 2**19, ids: int = 2**17) -> float:
    """Bytes of rows that random look-ups read a second, forward, from a table of 256 bytes a row; two digits."""
    draw = torch.Generator().manual_seed(0)
    table_RD = torch.zeros(rows, 64, device=device)
    ids_L = torch.randint(rows, (ids,), generator=draw).to(device)
    offsets_N = torch.arange(0, ids, 8, device=device)

    def look_up() -> None:
        F.embedding_bag(ids_L, table_RD, offsets_N, mode="sum")
        if device == "cuda":
            torch.cuda.synchronize()

    return _rate(look_up, ids * 256)


def loopback_bandwidth(size: int = 2**24) -> float:
    """Bytes a second from one end of a local socket to the other, as gloo's ranks of one host talk; two digits."""
    left, right = socket.socketpair()
    payload, buffer = bytes(size), bytearray(size)

    def transfer() -> None:
        sender = threading.Thread(target=left.sendall, args=(payload,))
        sender.start()
        view, got = memoryview(buffer), 0
        while got < size:
            got += right.recv_into(view[got:])
        sender.join()

    with left, right:
        return _rate(transfer, size)


def cuda_copy_bandwidth(size: int = 2**28) -> float:
    """Bytes a second from one GPU to the next; where there is one alone, to the host's memory; two digits."""
    source = torch.zeros(size, dtype=torch.uint8, device="cuda:0")
    alone = torch.cuda.device_count() == 1
    target = torch.zeros(size, dtype=torch.uint8, device="cpu" if alone else "cuda:1", pin_memory=alone)

    def copy() -> None:
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()

    return _rate(copy, size)


def _rate(work: Callable[[], None], size: int, repeats: int = 5) -> float:
    """``size`` over the seconds of the best of some calls, the first thrown away, to two digits."""
    best = float("inf")
    for turn in range(repeats + 1):
        started = time.perf_counter()
        work()
        if turn:
            best = min(best, time.perf_counter() - started)
    return float(f"{size / best:.1e}")
