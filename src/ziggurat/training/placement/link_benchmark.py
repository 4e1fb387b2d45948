"""Measures the bandwidths within and between the hosts of a training, for planners that price every row by them."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ziggurat.core.topology import DeviceKind
from ziggurat.embeddings.tower_transform.exchanges import HostRanks
from ziggurat.parallel.world import World
from ziggurat.planning.config import TopologyConfig

SENT = 2**21
"""Bytes that a rank sends to the ranks of a group, its own part included, in one exchange."""
REPEATS = 3


def with_measured_links(config: TopologyConfig, world: World, kind: DeviceKind) -> TopologyConfig:
    """Returns the topology with measured bandwidths in place of those that it does not give.

    All ranks call it together, and all get the figures of the slowest. A world of one host, or with one rank a host,
    has only one kind of link; the other figure is left as it is.

    Args:
        config: the ``planning.topology`` section.
        world: the ranks that train.
        kind: the kind of each rank's device.
    """
    found: dict[str, float] = {}
    hosts = HostRanks(world)
    if config.intra_bandwidth is None and world.local_size > 1:
        found["intra_bandwidth"] = _sent_per_second(hosts.within, world.local_size, kind)
    if config.inter_bandwidth is None and world.hosts > 1:
        found["inter_bandwidth"] = world.local_size * _sent_per_second(hosts.peers, world.hosts, kind)
    return config.model_copy(update=found)


def _sent_per_second(group: dist.ProcessGroup | None, ranks: int, kind: DeviceKind) -> float:
    """Returns the bytes that each rank of a group sends to the others in a second while all groups do so."""
    sent = torch.zeros(SENT // ranks * ranks, dtype=torch.uint8, device=kind)
    received = torch.empty_like(sent)
    seconds = float("inf")
    for repeat in range(REPEATS + 1):
        dist.barrier()
        started = time.perf_counter()
        dist.all_to_all_single(received, sent, group=group)
        if kind == "cuda":
            torch.cuda.synchronize()
        if repeat:  # the first connects the ranks
            seconds = min(seconds, time.perf_counter() - started)
    slowest = torch.tensor([seconds], dtype=torch.float64, device=kind)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(f"{len(sent) * (ranks - 1) / ranks / float(slowest):.1e}")
