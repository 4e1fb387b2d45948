"""Bytes that ids, pooled rows and their gradients take, within hosts and between them, by either exchange.

The gradients of the dense part are the same both ways and not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from ziggurat.core.plan import SPLIT_BY_ROWS, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.embeddings.layout import Layout
from ziggurat.parallel.config import ParallelConfig, Precision
from ziggurat.planning.cost import FLOAT, ID, LENGTH
from ziggurat.planning.plan_estimate import PlanEstimate
from ziggurat.planning.quantities import format_bytes
from ziggurat.towers.config import NoModule, TowersConfig
from ziggurat.towers.model import compression
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
        ring: the part of both that each link of a ring over all ranks carries, from each rank to the next.
    """

    between: float = 0.0
    within: float = 0.0
    ring: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.between + other.between, self.within + other.within, self.ring + other.ring)

    def seconds(self, topology: Topology) -> float:
        """Returns the time that the bytes take on links that are evenly loaded, one exchange after the other; a ring is
        as fast as its slowest link."""
        hosts, size = topology.hosts, topology.world_size
        slowest = min(topology.inter_bandwidth, topology.intra_bandwidth if topology.devices > 1 else float("inf"))
        between = (self.between - hosts * self.ring) / hosts / topology.inter_bandwidth
        within = (self.within - (size - hosts) * self.ring) / size / topology.intra_bandwidth
        return between + within + self.ring / slowest


def flat_traffic(floats: int, batch_size: int, topology: Topology, value_bytes: float = _FULL) -> Traffic:
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


def table_traffic(
    spec: TableSpec, sharding: Sharding, batch_size: int, topology: Topology, value_bytes: int = _FULL
) -> Traffic:
    """Returns the traffic of a table's rows and gradients by the flat exchange, as planners count it.

    Of a replicated table, the gradient of the whole table and a flag for each row go around a ring, in full precision.
    Of a table that all ranks hold by rows, each rank sends its part of the sum for every example; of one that the ranks
    of a host hold by rows, these are added up within the host first.

    Args:
        spec: the table.
        sharding: how it is split; not ``row_tiers``.
        batch_size, topology, value_bytes: as for :func:`flat_traffic`.
    """
    hosts, devices, size = topology.hosts, topology.devices, topology.world_size
    if sharding == "data_parallel":
        ring = 2 * (size - 1) / size * FLOAT * spec.rows * (spec.dim + 1)
        return Traffic(ring * hosts, ring * (size - hosts), ring)
    assert sharding != "row_tiers"
    floats = spec.dim * len(spec.keys)
    whole = flat_traffic(floats, batch_size, topology, value_bytes)
    rows = value_bytes * floats * batch_size
    if sharding == "row_wise":
        return Traffic(size * whole.between, (devices - 1) * rows)
    return Traffic(whole.between, (devices - 1) * rows) if sharding in SPLIT_BY_ROWS else whole


def traffic_note(
    config: TowersConfig,
    layout: Layout,
    batch_size: int,
    parallel: ParallelConfig,
    planned: PlanEstimate,
    *,
    transforms: bool,
    blocked: str | None = None,
) -> str | None:
    """Returns a note on the bytes of both exchanges with the faster one; None if only one is possible.

    Under the flat exchange, tables are counted as the plan places them. Under the transform, those that it splits by
    rows are split over the ranks of a host.

    Args:
        config: the ``towers`` section.
        layout: the tables and fields.
        batch_size: the examples of all ranks.
        parallel: the precisions of rows and gradients.
        planned: the plan and its devices.
        transforms: whether the experiment uses the tower transform, for which the plan then is.
        blocked: why it cannot; None if it can.
    """
    towers, topology = towers_of(config, layout), planned.topology
    sharding: dict[str, Sharding] = {name: each.sharding for name, each in planned.plan.placements.items()}
    if topology.hosts == 1 or len(towers) % topology.hosts or "row_tiers" in sharding.values():
        return None
    floats = sum(spec.dim * len(spec.keys) for spec in layout.tables)
    outputs, compressed = floats, ""
    if not isinstance(config.module, NoModule):
        fields, width = tower_fields(towers, layout), config.module.out_dim(layout.dim)
        each = [config.module.out_features(len(own)) for own in fields]
        outputs = sum(each) * width
        compressed = f"modules compress embeddings {compression(len(layout.fields), layout.dim, each, width):.3g}×; "
    value_bytes = _BYTES[parallel.forward_precision] + _BYTES[parallel.backward_precision]
    split = sum(spec.dim * len(spec.keys) for spec in layout.tables if sharding[spec.name] in SPLIT_BY_ROWS)
    flat, transform = Traffic(), tower_traffic(floats, outputs, batch_size, topology, value_bytes, split)
    for spec in layout.tables:
        id_bytes = ID * planned.ids_per_row[spec.name] + LENGTH * len(spec.keys)
        ids = flat_traffic(1, batch_size, topology, id_bytes)
        flat += table_traffic(spec, sharding[spec.name], batch_size, topology, value_bytes)
        flat += Traffic() if sharding[spec.name] == "data_parallel" else ids
        transform += ids
    seconds = [each.seconds(topology) for each in (flat, transform)]
    better = seconds[1] < seconds[0]
    advice = f"use parallel.embeddings: {{name: {'tower_transform' if better else 'flat'}}}"
    if better and blocked is not None:
        advice = f"not possible here, as {blocked}"
    return (
        f"towers: {compressed}ids, rows and gradients of a step take {format_bytes(flat.between)} between hosts and "
        f"{format_bytes(flat.within)} within them by the flat exchange, {seconds[0]:.2g} s; "
        f"{format_bytes(transform.between)} and {format_bytes(transform.within)} by the tower transform, "
        f"{seconds[1]:.2g} s: {'as chosen' if better == transforms else advice}"
    )
