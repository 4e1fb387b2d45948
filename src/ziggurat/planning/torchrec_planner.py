"""TorchRec's own planner, restricted to the placements that ziggurat supports.

Use it for comparison, or to keep existing TorchRec plans. TorchRec contributes its estimate of a shard's time, its
proposals of how each table is split, its greedy placement of each proposal, and its choice among them by the time of
the slowest device. ziggurat contributes the possible splits of a table and the bytes that its shards need.

TorchRec's own estimate of these bytes is too low: it omits the gradients of vectors, the partial sums of a host,
lengths, the gradient of a replicated table, and that most ids go to one device if the first rows are the hottest. For
small replicated tables it is too high: it counts the ids and vectors of the device's own examples, which do not belong
to the table. With ziggurat's bytes, it finds a plan whenever one of its proposals fits, and never one that does not.
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
    """TorchRec's planner; the module's docstring says how it is used."""

    class Config(PlannerSettings):
        """TorchRec's EmbeddingShardingPlanner, with its own model of how long a step takes."""

        name: Literal["torchrec"] = "torchrec"

        fused: bool = True
        """Use only splits that FBGEMM's kernels support; tables of row-wise Adagrad are then never split by columns."""
        proposals: int = pydantic.Field(default=10_000, ge=0)
        """If the tables' splits have at most this many combinations, all are tried; else a few dozen that are chosen
        greedily."""

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> TorchRec:
            del time_parts, progress
            return TorchRec(self)

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`."""
        plan = Plan(problem.topology.world_size, {}, problem.topology.devices)
        if not problem.tables:
            return plan
        Loads(problem).check()
        # Imported here, so that configs and other planners need not wait for the import of torchrec.
        from ziggurat.planning.torchrec_search import search

        options = {table.name: self._split_options(problem, table) for table in problem.tables}
        found = search(problem, options, self.config.proposals)
        if found is None:
            raise _no_capacity_error(problem, options)
        for name, split in found.splits.items():
            assert split.ranks is not None
            plan = plan.placed(name, split.sharding, split.ranks)
        seconds = format_seconds(found.seconds)
        return replace(plan, notes=(f"torchrec: by TorchRec's own model, the slowest device takes {seconds}",))

    @property
    def feasibility_planner(self) -> TorchRec:
        """The same planner without trying every combination, which says sooner whether there is a plan."""
        return TorchRec(self.config.model_copy(update={"proposals": 0}))

    def _split_options(self, problem: Problem, table: TableSpec) -> list[TableSplit]:
        """Returns the possible splits of the table, as far as the user and its optimizer leave a choice."""
        constraint, topology = problem.constraints.get(table.name), problem.topology
        if constraint is not None and constraint.sharding == "column_wise" and constraint.ranks is None:
            return [TableSplit("column_wise", parts) for parts in column_parts(table, topology) or [1]]
        if constraint is not None:
            return [TableSplit(constraint.sharding, len(constraint.ranks or (0,)), constraint.ranks)]
        if must_replicate(table, topology.kind):
            return [REPLICATED]
        replicated = [REPLICATED] if topology.world_size > 1 and not problem.offloads_rows else []
        return [WHOLE, *replicated, *split_options(problem, table, self.config.fused)]


def _no_capacity_error(problem: Problem, options: Mapping[str, Sequence[TableSplit]]) -> NoFeasiblePlan:
    """Returns the error about the table that lacks most memory by itself; if each fits alone, about all together."""
    kept = {
        table.name: [[cost.kept_bytes for cost in shard_costs(problem, table, split)] for split in options[table.name]]
        for table in problem.tables
    }
    capacity, hint = problem.capacity, "split tables over more devices, or give the devices more memory"
    largest = {name: min(max(each) for each in sizes) for name, sizes in kept.items()}
    name = max(largest, key=lambda name: largest[name])
    if largest[name] > capacity:
        return NoFeasiblePlan(
            f"a device is {format_bytes(largest[name] - capacity)} short: it has {format_bytes(capacity)} for tables, "
            f"and table {name!r} needs {format_bytes(largest[name])} of it, however it is split",
            hint,
        )
    total = sum(min(sum(each) for each in sizes) for sizes in kept.values())
    return NoFeasiblePlan(
        f"{len(kept)} tables need {format_bytes(total)} or more, the devices have "
        f"{format_bytes(capacity * problem.topology.world_size)} for them, and TorchRec's planner found no way to put "
        f"them there; the largest shard is of table {name!r}, with {format_bytes(largest[name])}",
        hint,
    )
