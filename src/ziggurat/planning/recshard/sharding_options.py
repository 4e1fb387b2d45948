"""Lists the possible placements of a table (sharding and ranks), before its fast rows are chosen.

A table can be whole on any device. A table that no device can hold, or that costs more than a device's even share of
the work, can also be split by rows over all devices or over those of a host. The user's constraints, and optimizers
without a fused kernel, leave fewer placements. If the user asks for a column-wise split without ranks, neighbouring
ranks are used.
"""

from __future__ import annotations

from ziggurat.core.plan import Placement, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import column_parts, fixed_ranks, must_replicate
from ziggurat.planning.problem import Problem


def required_placements(problem: Problem, table: TableSpec) -> list[Placement]:
    """Returns the placements that the user's constraint or the optimizer allows; empty if neither constrains any."""
    constraint = problem.constraints.get(table.name)
    if constraint is None:
        if must_replicate(table, problem.topology.kind):
            return _placements(problem, table, "data_parallel")
        return []
    if constraint.ranks is not None:
        return [Placement(constraint.sharding, constraint.ranks)]
    return _placements(problem, table, constraint.sharding)


def allowed_placements(problem: Problem, table: TableSpec, hot: bool) -> list[Placement]:
    """Returns the possible placements of an unconstrained table.

    Args:
        problem: the problem.
        table: the table.
        hot: whether it costs more than a device's even share of the work.
    """
    topology, cost = problem.topology, problem.whole(table)
    whole = _placements(problem, table, "table_wise")
    if topology.world_size == 1 or table.rows < topology.world_size:
        return whole
    split = _placements(problem, table, "row_wise")
    if topology.hosts > 1 and topology.devices > 1:
        split += _placements(problem, table, "table_row_wise")
    capacity = problem.capacity + topology.slow_memory_bytes
    if cost.kept_bytes > capacity or cost.buffer_bytes > problem.capacity:
        return split
    return [*whole, *split] if hot else whole


def _placements(problem: Problem, table: TableSpec, sharding: Sharding) -> list[Placement]:
    topology = problem.topology
    world = range(topology.world_size)
    match sharding:
        case "table_wise":
            ranks = [(rank,) for rank in world]
        case "table_row_wise":
            ranks = [topology.ranks_of(host) for host in range(topology.hosts)]
        case "column_wise":
            ranks = [
                tuple((first + part) % len(world) for part in range(parts))
                for parts in column_parts(table, topology) or [1]
                for first in world
            ]
        case "row_wise" | "grid" | "data_parallel" | "row_tiers":
            fixed = fixed_ranks(sharding, topology)
            assert fixed is not None
            ranks = [fixed]
    return [Placement(sharding, each) for each in ranks]
