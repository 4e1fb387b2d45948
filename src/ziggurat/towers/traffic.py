"""Bytes that pooled rows and their gradients take, within hosts and between them, by either exchange.

Ids, and the gradients of the dense part, are the same both ways and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ziggurat.core.plan import Plan
from ziggurat.core.topology import Topology
from ziggurat.embeddings.layout import Layout
from ziggurat.parallel.config import ParallelConfig, Precision
from ziggurat.planning.quantities import format_bytes
from ziggurat.towers.config import NoModule, TowersConfig
from ziggurat.towers.placed import tower_fields, towers_of

_BYTES: dict[Precision, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
_FULL = 8
"""Bytes of a number in full precision: rows go one way, gradients the other."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one step, of all ranks.

    Attributes:
        between: between hosts.
        within: between ranks of a host.
    """

    between: float
    within: float

    def seconds(self, topology: Topology) -> float:
        """Returns the time that the bytes take on links that are evenly loaded, one exchange after the other."""
        between = self.between / topology.hosts / topology.inter_bandwidth
        return between + self.within / topology.world_size / topology.intra_bandwidth


def flat_traffic(floats: int, batch_size: int, topology: Topology, value_bytes: int = _FULL) -> Traffic:
    """Returns the traffic of one exchange between all ranks, for tables that are evenly placed.

    Args:
        floats: the floats of an example's pooled rows, of all tables.
        batch_size: the examples of all ranks.
        topology: the ranks.
        value_bytes: the bytes of a number of a row and of its gradient.
    """
    rows = value_bytes * floats * batch_size
    hosts, size = topology.hosts, topology.world_size
    return Traffic(rows * (hosts - 1) / hosts, rows * (topology.devices - 1) / size)


def tower_traffic(
    floats: int, outputs: int, batch_size: int, topology: Topology, value_bytes: int = _FULL, split: int = 0
) -> Traffic:
    """Returns the traffic of the tower transform.

    Args:
        floats, batch_size, topology, value_bytes: as for :func:`flat_traffic`.
        outputs: the floats that all towers return for an example.
        split: those of ``floats`` that are of tables which the ranks of a host hold by rows: each rank sends its part
            of the sum for every example, and gets every gradient.
    """
    each = value_bytes * batch_size
    hosts, devices = topology.hosts, topology.devices
    return Traffic(
        each * outputs * (hosts - 1) / hosts, each * (floats + split * (devices - 1)) * (devices - 1) / devices
    )


def traffic_note(
    config: TowersConfig,
    layout: Layout,
    batch_size: int,
    topology: Topology,
    parallel: ParallelConfig,
    plan: Plan,
    *,
    transforms: bool,
    blocked: str | None = None,
) -> str | None:
    """Returns a note on the bytes of both exchanges with the faster one; None if only one is possible.

    Args:
        config: the ``towers`` section.
        layout: the tables and fields.
        batch_size: the examples of all ranks.
        topology: the ranks.
        parallel: the precisions of rows and gradients.
        plan: the plan, which says whose rows are divided among ranks.
        transforms: whether the experiment uses the tower transform.
        blocked: why it cannot; None if it can.
    """
    towers = towers_of(config, layout)
    if topology.hosts == 1 or len(towers) % topology.hosts:
        return None
    floats = sum(spec.dim * len(spec.keys) for spec in layout.tables)
    outputs = floats
    if not isinstance(config.module, NoModule):
        fields = tower_fields(towers, layout)
        outputs = sum(config.module.out_features(len(each)) for each in fields) * config.module.out_dim(layout.dim)
    value_bytes = _BYTES[parallel.forward_precision] + _BYTES[parallel.backward_precision]
    flat = flat_traffic(floats, batch_size, topology, value_bytes)
    by_rows = {"row_wise", "table_row_wise"}
    split = sum(spec.dim * len(spec.keys) for spec in layout.tables if plan.placements[spec.name].sharding in by_rows)
    transform = tower_traffic(floats, outputs, batch_size, topology, value_bytes, split)
    seconds = [each.seconds(topology) for each in (flat, transform)]
    better = seconds[1] < seconds[0]
    advice = f"use parallel.embeddings: {{name: {'tower_transform' if better else 'flat'}}}"
    if better and blocked is not None:
        advice = f"not possible here, as {blocked}"
    return (
        f"towers: rows and gradients of a step take {format_bytes(flat.between)} between hosts and "
        f"{format_bytes(flat.within)} within them by the flat exchange, {seconds[0]:.2g} s; "
        f"{format_bytes(transform.between)} and {format_bytes(transform.within)} by the tower transform, "
        f"{seconds[1]:.2g} s: {'as chosen' if better == transforms else advice}"
    )
