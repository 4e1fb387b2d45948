"""TorchRec's own planner, asked about exactly those placements that ziggurat carries out.

What is TorchRec's: its estimate of the time that a shard takes, its proposals of how each table is split, its greedy
placement of each proposal, and its choice among them, by the time of the slowest device. What is ziggurat's: which ways
there are for a table, and the bytes that its shards need.

TorchRec has an estimate of those bytes too, which promises too much room: it leaves out the gradients of vectors, the
sums of a host, lengths, the gradient of a table that every device holds, and that where the first rows are the hottest,
most ids come to one device. Of small tables that every device holds it counts too much, the ids and vectors of the
device's own examples, which are not the table's. Given ziggurat's bytes instead, it finds a plan wherever one of its
proposals has room, and none that has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import pydantic

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress
from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import column_parts, must_replicate
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.placement import Loads, TableSplit, shard_costs, split_options
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.planning.rules import REPLICATED, WHOLE


class TorchRec(Planner):
    """See the module."""

    class Config(PlannerSettings):
        """TorchRec's EmbeddingShardingPlanner, with its own model of how long a step takes."""

        name: Literal["torchrec"] = "torchrec"

        fused: bool = True
        """Only such splits as FBGEMM's kernels carry out: row-wise Adagrad's tables are never split by columns then."""
        proposals: int = pydantic.Field(default=10_000, ge=0)
        """Every combination of the tables' ways is tried where there are so many at most; where there are more, some
        dozens that are chosen greedily."""

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> TorchRec:
            del time_parts, progress
            return TorchRec(self)

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.problem.Planner`."""
        plan = Plan(problem.topology.world_size, {}, problem.topology.devices)
        if not problem.tables:
            return plan
        Loads(problem).check()
        # Imported here: configs and other planners must not wait for the engine.
        from ziggurat.planning.torchrec_search import search

        ways = {table.name: self._split_options(problem, table) for table in problem.tables}
        found = search(problem, ways, self.config.proposals)
        if found is None:
            raise _no_capacity_error(problem, ways)
        for name, split in found.splits.items():
            assert split.ranks is not None
            plan = plan.placed(name, split.sharding, split.ranks)
        seconds = format_seconds(found.seconds)
        return replace(plan, notes=(f"torchrec: by TorchRec's own model, the slowest device takes {seconds}",))

    @property
    def first_answer(self) -> TorchRec:
        """Says sooner whether there is room: what it finds room for without trying every combination."""
        return TorchRec(self.config.model_copy(update={"proposals": 0}))

    def _split_options(self, problem: Problem, table: TableSpec) -> list[TableSplit]:
        """How the table may lie; where the user or its optimizer leaves no choice, so."""
        constraint, topology = problem.constraints.get(table.name), problem.topology
        if constraint is not None and constraint.sharding == "column_wise" and constraint.ranks is None:
            return [TableSplit("column_wise", parts) for parts in column_parts(table, topology) or [1]]
        if constraint is not None:
            return [TableSplit(constraint.sharding, len(constraint.ranks or (0,)), constraint.ranks)]
        if must_replicate(table, topology.kind):
            return [REPLICATED]
        replicated = [REPLICATED] if topology.world_size > 1 and not problem.offloads_rows else []
        return [WHOLE, *replicated, *split_options(problem, table, self.config.fused)]


def _no_capacity_error(problem: Problem, ways: Mapping[str, Sequence[TableSplit]]) -> NoFeasiblePlan:
    """Of the table that lacks most by itself; where each by itself has room, of all of them together."""
    kept = {
        table.name: [[cost.kept_bytes for cost in shard_costs(problem, table, way)] for way in ways[table.name]]
        for table in problem.tables
    }
    room, hint = problem.capacity, "split tables over more devices, or give the devices more memory"
    largest = {name: min(max(each) for each in sizes) for name, sizes in kept.items()}
    name = max(largest, key=lambda name: largest[name])
    if largest[name] > room:
        return NoFeasiblePlan(
            f"a device is {format_bytes(largest[name] - room)} short: it has {format_bytes(room)} for tables, and "
            f"table {name!r} needs {format_bytes(largest[name])} of it, however it is split",
            hint,
        )
    total = sum(min(sum(each) for each in sizes) for sizes in kept.values())
    return NoFeasiblePlan(
        f"{len(kept)} tables need {format_bytes(total)} or more, the devices have "
        f"{format_bytes(room * problem.topology.world_size)} for them, and TorchRec's planner found no way to put "
        f"them there; the largest shard is of table {name!r}, with {format_bytes(largest[name])}",
        hint,
    )
