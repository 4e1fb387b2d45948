"""A planner by rules: replicates small tables, splits large and hot ones, and balances the rest.

1. A table of up to ``replicate_up_to`` bytes is **replicated** if exchanging its whole gradient costs every device no
   more than an even share of the sharded table's cost.
2. A table is **split** if no device can hold it, or if it alone costs more than a device's even share of all the work.
   Of the possible splits (columns, rows over all ranks, rows within one host, grid; replication for small tables), the
   one is taken whose costliest shard, or resulting mean load, is lowest.
3. Every other table is **whole** on one device, chosen by greedy assignment, largest differencing and swaps
   (:mod:`~ziggurat.planning.balance`). Then the costliest table of the slowest device is split as well, as long as that
   helps.

If memory is short, no table is replicated, and the largest tables are split by rows, more of them at each attempt. If
that finds no plan either, as few tables as possible are split, each in the way that needs least memory
(:mod:`~ziggurat.planning.packing`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import pydantic

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress
from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import column_parts, must_replicate
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.packing import plan_in_short_memory
from ziggurat.planning.placement import TableSplit, place_tables, shard_costs, split_options
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import Bytes

WHOLE, REPLICATED = TableSplit("table_wise"), TableSplit("data_parallel")


Place = Callable[[dict[str, TableSplit]], Plan]
"""Makes a plan for tables with the given splits."""


class Rules(Planner):
    """The planner by rules; the module's docstring states them."""

    class Config(PlannerSettings):
        """A planner by rules: small tables on every device, large and hot ones split, the others balanced."""

        name: Literal["rules"] = "rules"

        replicate_up_to: Bytes = 16 * 2**20
        """The most bytes of weights that a replicated table may have."""
        fused: bool = True
        """Use only splits that FBGEMM's kernels support. Tables of row-wise Adagrad are then never split by columns;
        torch would have to look these up, which takes longer."""
        rounds: int = pydantic.Field(default=16, ge=0)
        """The most attempts to split the costliest table of the slowest device."""
        slack: float = pydantic.Field(default=0.03, ge=0)
        """Imbalance that is accepted: the slowest device may be this share above the mean."""

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> Rules:
            del time_parts, progress
            return Rules(self)

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`."""
        splits = self.initial_splits(problem)
        try:
            plan = self.place_within_memory(problem, splits, lambda splits: place_tables(problem, splits))
        except NoFeasiblePlan:
            tight = plan_in_short_memory(
                problem, self.unsplit(problem), lambda table: self._alternatives(problem, table)
            )
            if tight is None:
                raise
            splits, plan = tight
        return self._split_hot_tables(problem, splits, plan)

    def place_within_memory(self, problem: Problem, splits: dict[str, TableSplit], place: Place) -> Plan:
        """Returns the plan that ``place`` makes of ``splits``, which are changed to need less memory until it succeeds.

        Raises:
            NoFeasiblePlan: raised by ``place`` when nothing more can be done.
        """
        more = 1
        while True:
            try:
                return place(splits)
            except NoFeasiblePlan:
                if not self._reduce_memory(problem, splits, more):
                    raise
                more *= 2

    def unsplit(self, problem: Problem) -> dict[str, TableSplit]:
        """Returns a split for each table that keeps it whole, unless the user or the optimizer requires another."""
        return {table.name: self._required_split(problem, table) or WHOLE for table in problem.tables}

    def initial_splits(self, problem: Problem) -> dict[str, TableSplit]:
        """Returns the split of each table by rules 1 and 2."""
        splits = {
            table.name: self._required_split(problem, table) or self._replicate_if_cheaper(problem, table)
            for table in problem.tables
        }
        free = problem.capacity - sum(
            shard_costs(problem, table, REPLICATED)[0].kept_bytes
            for table in problem.tables
            if splits[table.name] == REPLICATED
        )
        total = sum(cost.seconds for t in problem.tables for cost in shard_costs(problem, t, splits[t.name]))
        for table in sorted(problem.tables, key=lambda table: -problem.whole(table).seconds):
            whole = problem.whole(table)
            hot = whole.seconds > total / problem.topology.world_size
            if table.name in problem.constraints or splits[table.name] != WHOLE or not (hot or whole.kept_bytes > free):
                continue
            others = total - whole.seconds
            split = self._best_split(problem, table, others, free)
            if split is not None:
                splits[table.name] = split
                total = others + sum(cost.seconds for cost in shard_costs(problem, table, split))
        return splits

    def _required_split(self, problem: Problem, table: TableSpec) -> TableSplit | None:
        """Returns the split that the user or the optimizer requires, or None."""
        constraint = problem.constraints.get(table.name)
        if constraint is None:
            return REPLICATED if must_replicate(table, problem.topology.kind) else None
        if constraint.sharding != "column_wise" or constraint.ranks is not None:
            return TableSplit(constraint.sharding, len(constraint.ranks or (0,)), constraint.ranks)
        parts = [TableSplit("column_wise", parts) for parts in column_parts(table, problem.topology)]
        others = sum(problem.whole(other).seconds for other in problem.tables if other is not table)
        return self._best_of(problem, table, parts, others, problem.capacity) or TableSplit("column_wise")

    def _replicate_if_cheaper(self, problem: Problem, table: TableSpec) -> TableSplit:
        world = problem.topology.world_size
        if not self._may_replicate(problem, table):
            return WHOLE
        exchange = max(cost.seconds for cost in shard_costs(problem, table, REPLICATED))
        return REPLICATED if exchange <= problem.whole(table).seconds / world else WHOLE

    def _may_replicate(self, problem: Problem, table: TableSpec) -> bool:
        several = problem.topology.world_size > 1 and not problem.offloads_rows
        return several and table.weight_bytes <= self.config.replicate_up_to

    def _alternatives(self, problem: Problem, table: TableSpec) -> list[TableSplit]:
        """Returns what may take the place of the whole table; nothing if its split is required."""
        if self._required_split(problem, table) is not None:
            return []
        return [*([REPLICATED] if self._may_replicate(problem, table) else []), *self._split_options(problem, table)]

    def _split_options(self, problem: Problem, table: TableSpec) -> list[TableSplit]:
        """Returns every split of the table over several devices."""
        return split_options(problem, table, self.config.fused)

    def _best_split(self, problem: Problem, table: TableSpec, others: float, free: float) -> TableSplit | None:
        """Returns the best split of the table, or its replication; if none fits, the split that needs least memory."""
        options = self._split_options(problem, table)
        replicated = [REPLICATED] if self._may_replicate(problem, table) else []
        best = self._best_of(problem, table, [WHOLE, *replicated, *options], others, free)
        if best is not None:
            return best
        return min(options, key=lambda split: _largest_shard_bytes(problem, table, split), default=None)

    def _best_of(
        self, problem: Problem, table: TableSpec, options: list[TableSplit], others: float, free: float
    ) -> TableSplit | None:
        """Returns the fitting split with the lowest maximum of its costliest shard and the resulting mean load."""

        def cost(split: TableSplit) -> float:
            seconds = [shard.seconds for shard in shard_costs(problem, table, split)]
            return max(*seconds, (others + sum(seconds)) / problem.topology.world_size)

        fitting = [split for split in options if _largest_shard_bytes(problem, table, split) <= free]
        return min(fitting, key=cost, default=None)

    def _reduce_memory(self, problem: Problem, splits: dict[str, TableSplit], limit: int) -> bool:
        """Changes ``splits`` to need less memory: drops all replicas, or splits up to ``limit`` more tables by rows.

        Returns:
            Whether anything was changed.
        """
        movable = [table for table in problem.tables if self._required_split(problem, table) is None]
        replicas = [table for table in movable if splits[table.name] == REPLICATED]
        if replicas:
            splits.update({table.name: WHOLE for table in replicas})
            return True
        rows = TableSplit("row_wise")
        left = [table for table in movable if splits[table.name] != rows and self._split_options(problem, table)]
        left.sort(key=lambda table: -problem.whole(table).kept_bytes)
        splits.update({table.name: rows for table in left[:limit]})
        return bool(left)

    def _split_hot_tables(self, problem: Problem, splits: Mapping[str, TableSplit], plan: Plan) -> Plan:
        """Applies the second half of rule 3: splits tables of the slowest device while that helps.

        It also continues from a split that does not help by itself, because two together may.
        """
        splits, tried, best = dict(splits), set(problem.constraints), plan
        for _ in range(self.config.rounds):
            loads = device_seconds(problem, plan)
            if max(loads) <= (1 + self.config.slack) * sum(loads) / len(loads):
                break
            slowest = (loads.index(max(loads)),)
            candidates = [
                table
                for table in problem.tables
                if table.name not in tried
                and splits[table.name] == WHOLE
                and plan.placements[table.name].ranks == slowest
            ]
            if not candidates:
                break
            table = max(candidates, key=lambda table: problem.whole(table).seconds)
            tried.add(table.name)
            found = [
                (max(device_seconds(problem, other)), other, split)
                for split in self._split_options(problem, table)
                if (other := _plan_or_none(problem, {**splits, table.name: split})) is not None
            ]
            if not found:
                continue
            reached, plan, splits[table.name] = min(found, key=lambda each: each[0])
            if reached < 0.99 * max(device_seconds(problem, best)):
                best = plan
        return best


def device_seconds(problem: Problem, plan: Plan) -> list[float]:
    """Returns the modelled seconds of a step on each device, for the tables that the plan has placed."""
    seconds = [0.0] * problem.topology.world_size
    for table in problem.tables:
        for shard, cost in problem.costs(table, plan) if table.name in plan.placements else ():
            seconds[shard.rank] += cost.seconds
    return seconds


def _plan_or_none(problem: Problem, splits: Mapping[str, TableSplit]) -> Plan | None:
    try:
        return place_tables(problem, splits)
    except NoFeasiblePlan:
        return None


def _largest_shard_bytes(problem: Problem, table: TableSpec, split: TableSplit) -> int:
    return max(cost.kept_bytes for cost in shard_costs(problem, table, split))
