"""A planner by rules: replicate what is small, split what is too large or too hot, balance the rest.

1. A table is **replicated** where exchanging its whole gradient costs every device no more than its even share of
   having the table sharded, up to ``replicate_up_to`` bytes.
2. A table is **split** where one device cannot hold it, or where it alone costs more than a device's even share of all
   the work. Of the ways there are (columns, rows of the world, rows of one host, grid; small ones replicated), it
   takes the one whose costliest shard, or the mean load that follows, is lowest.
3. All else lies **whole** on one device. Greedy, largest differencing and exchanges (:mod:`~ziggurat.planning.balance`)
   choose which; then the costliest table of the fullest device is split as well, as long as that helps.

Where memory runs short, no table is replicated, and the largest are split by rows, more of them each time.
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
from ziggurat.planning.placement import TableSplit, place_tables, shard_costs, split_options
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import Bytes

WHOLE, REPLICATED = TableSplit("table_wise"), TableSplit("data_parallel")


Place = Callable[[dict[str, TableSplit]], Plan]
"""A plan of tables that are split so."""


class Rules(Planner):
    """See the module."""

    class Config(PlannerSettings):
        """A planner by rules: small tables on every device, large and hot ones split, the others balanced."""

        name: Literal["rules"] = "rules"

        replicate_up_to: Bytes = 16 * 2**20
        """The most bytes of weights that a table held on every device may have."""
        fused: bool = True
        """Only such splits as FBGEMM's kernels carry out: tables of row-wise Adagrad are then never split by columns,
        which torch has to look up and which takes longer."""
        rounds: int = pydantic.Field(default=16, ge=0)
        """How often at most the costliest table of the fullest device is tried in parts."""
        slack: float = pydantic.Field(default=0.03, ge=0)
        """A fullest device this share above the mean is well enough balanced."""

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> Rules:
            del time_parts, progress
            return Rules(self)

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.problem.Planner`."""
        splits = self.first(problem)
        plan = self.place_within_memory(problem, splits, lambda splits: place_tables(problem, splits))
        return self._split_hot_tables(problem, splits, plan)

    def place_within_memory(self, problem: Problem, splits: dict[str, TableSplit], place: Place) -> Plan:
        """What ``place`` makes of ``splits``, which take less of every device's memory each time it finds no room.

        Raises:
            NoFeasiblePlan: by ``place``, once nothing more can be done.
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
        """Every table whole, but for what the user or the optimizer asks."""
        return {table.name: self._required_split(problem, table) or WHOLE for table in problem.tables}

    def first(self, problem: Problem) -> dict[str, TableSplit]:
        """How each table is split, by rules 1 and 2."""
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
        """What the user wants, or the optimizer."""
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

    def _split_options(self, problem: Problem, table: TableSpec) -> list[TableSplit]:
        """Every way in which the table can be split over several devices."""
        return split_options(problem, table, self.config.fused)

    def _best_split(self, problem: Problem, table: TableSpec, others: float, free: float) -> TableSplit | None:
        """The best way to split the table, or to replicate it; where none has room, the split that needs least."""
        ways = self._split_options(problem, table)
        replicated = [REPLICATED] if self._may_replicate(problem, table) else []
        best = self._best_of(problem, table, [WHOLE, *replicated, *ways], others, free)
        if best is not None:
            return best
        return min(ways, key=lambda way: _largest_shard_bytes(problem, table, way), default=None)

    def _best_of(
        self, problem: Problem, table: TableSpec, ways: list[TableSplit], others: float, free: float
    ) -> TableSplit | None:
        """Of the ways whose shards have room, the one that leaves the lowest costliest shard or mean load."""

        def merit(way: TableSplit) -> float:
            seconds = [cost.seconds for cost in shard_costs(problem, table, way)]
            return max(*seconds, (others + sum(seconds)) / problem.topology.world_size)

        fitting = [way for way in ways if _largest_shard_bytes(problem, table, way) <= free]
        return min(fitting, key=merit, default=None)

    def _reduce_memory(self, problem: Problem, splits: dict[str, TableSplit], most: int) -> bool:
        """Whether something more can be done for memory, with ``most`` more tables at once; ``splits`` has it then."""
        movable = [table for table in problem.tables if self._required_split(problem, table) is None]
        replicas = [table for table in movable if splits[table.name] == REPLICATED]
        if replicas:
            splits.update({table.name: WHOLE for table in replicas})
            return True
        rows = TableSplit("row_wise")
        left = [table for table in movable if splits[table.name] != rows and self._split_options(problem, table)]
        left.sort(key=lambda table: -problem.whole(table).kept_bytes)
        splits.update({table.name: rows for table in left[:most]})
        return bool(left)

    def _split_hot_tables(self, problem: Problem, splits: Mapping[str, TableSplit], plan: Plan) -> Plan:
        """Rule 3's second half. It goes on from splits that do not help by themselves: two together may."""
        splits, tried, best = dict(splits), set(problem.constraints), plan
        for _ in range(self.config.rounds):
            loads = device_seconds(problem, plan)
            if max(loads) <= (1 + self.config.slack) * sum(loads) / len(loads):
                break
            full = (loads.index(max(loads)),)
            here = [
                table
                for table in problem.tables
                if table.name not in tried and splits[table.name] == WHOLE and plan.placements[table.name].ranks == full
            ]
            if not here:
                break
            table = max(here, key=lambda table: problem.whole(table).seconds)
            tried.add(table.name)
            found = [
                (max(device_seconds(problem, other)), other, way)
                for way in self._split_options(problem, table)
                if (other := _plan_or_none(problem, {**splits, table.name: way})) is not None
            ]
            if not found:
                continue
            reached, plan, splits[table.name] = min(found, key=lambda each: each[0])
            if reached < 0.99 * max(device_seconds(problem, best)):
                best = plan
        return best


def device_seconds(problem: Problem, plan: Plan) -> list[float]:
    """Modelled seconds of a step on each device, of the tables that the plan has placed."""
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


def _largest_shard_bytes(problem: Problem, table: TableSpec, way: TableSplit) -> int:
    return max(cost.kept_bytes for cost in shard_costs(problem, table, way))
