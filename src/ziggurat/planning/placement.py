"""From how each table is split to who holds what: what has a choice of ranks is balanced over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan, Shard, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.planning.balance import Capacity, balanced, in_runs
from ziggurat.planning.constraints import COLUMN_MULTIPLE, column_parts, fixed_ranks, stays_fused
from ziggurat.planning.cost import ShardCost
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import written_bytes


@dataclass(frozen=True, slots=True)
class TableSplit:
    """How a table is split, before anybody decides where it lies.

    Attributes:
        sharding: of the table.
        parts: of its columns, where it is column-wise.
        ranks: where somebody has decided already.
    """

    sharding: Sharding
    parts: int = 1
    ranks: tuple[int, ...] | None = None


def ways_to_split(problem: Problem, table: TableSpec, fused: bool) -> list[TableSplit]:
    """Every way in which ``table`` can be split over several devices; where ``fused``, those of FBGEMM's kernels."""
    topology = problem.topology
    if topology.world_size == 1 or table.rows < topology.world_size:
        return []
    ways = [TableSplit("row_wise")]
    two_levels = topology.hosts > 1 and topology.devices > 1
    if two_levels:
        ways.append(TableSplit("table_row_wise"))
    columns = not problem.rows_leave and (not fused or stays_fused(table, "column_wise"))
    if two_levels and table.dim % (COLUMN_MULTIPLE * topology.hosts) == 0 and columns:
        ways.append(TableSplit("grid"))
    if columns:
        ways += [TableSplit("column_wise", parts) for parts in column_parts(table, topology)]
    return ways


def shard_costs(problem: Problem, table: TableSpec, split: TableSplit) -> list[ShardCost]:
    """The cost of each shard, wherever it will lie; of a replicated table, of each copy."""
    return [cost for _, cost in stand_in_shards(problem, table, split)]


def stand_in_shards(problem: Problem, table: TableSpec, split: TableSplit) -> list[tuple[Shard, ShardCost]]:
    """Every shard with its cost; where ranks are yet to be chosen, on some that it could lie on."""
    stand_in = given_ranks(problem, split) or (
        problem.topology.ranks_of(0) if split.sharding == "table_row_wise" else (0,) * split.parts
    )
    return problem.costs(table, _plan(problem).placed(table.name, split.sharding, stand_in))


def given_ranks(problem: Problem, split: TableSplit) -> tuple[int, ...] | None:
    """The ranks, where somebody has decided already or the sharding leaves no choice."""
    return split.ranks or fixed_ranks(split.sharding, problem.topology)


@dataclass(frozen=True, slots=True)
class Item:
    """A whole table, or a range of its columns, that may lie on any device."""

    table: TableSpec
    split: TableSplit
    shard: Shard
    cost: ShardCost
    name: str


Assign = Callable[[Problem, Plan, Sequence[Item], "Loads"], Sequence[int]]
"""A rank for every item, beside what the plan has placed and the loads that this amounts to."""


def evenly(problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
    """By the best balance of modelled seconds that :mod:`~ziggurat.planning.balance` finds.

    Raises:
        NoFeasiblePlan: an item finds no room; its table is named.
    """
    room = Capacity(
        costs=[item.cost.seconds for item in items],
        sizes=[item.cost.kept_bytes for item in items],
        capacities=loads.free,
        names=[item.name for item in items],
        before=loads.seconds,
    )
    return in_runs(room, balanced(room)).bins


def placed(problem: Problem, splits: Mapping[str, TableSplit], assign: Assign = evenly) -> Plan:
    """The tables, split so, over the devices: what is on given ranks first, then tables over hosts, then the rest.

    Args:
        problem, splits: the tables and how each is split.
        assign: decides about what may lie on any device.

    Raises:
        NoFeasiblePlan: a shard finds no room; its table is named.
    """
    plan, loads = _plan(problem), Loads(problem)
    floating: dict[str, list[TableSpec]] = {}
    for table in problem.tables:
        split = splits[table.name]
        ranks = given_ranks(problem, split)
        if ranks is None:
            floating.setdefault(split.sharding, []).append(table)
        else:
            plan = plan.placed(table.name, split.sharding, ranks)
            loads.add(table, plan)
    loads.check()
    for table, host in _over_hosts(problem, floating.pop("table_row_wise", []), loads):
        plan = plan.placed(table.name, "table_row_wise", problem.topology.ranks_of(host))
        loads.add(table, plan)
    rest = [table for tables in floating.values() for table in tables]
    return _over_devices(problem, plan, rest, splits, loads, assign)


class Loads:
    """Seconds and bytes on each device so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seconds = [0.0] * problem.topology.world_size
        self.free = [problem.capacity] * problem.topology.world_size
        self._largest: dict[int, tuple[int, str]] = {}  # rank -> bytes and name of what takes most of it

    def add(self, table: TableSpec, plan: Plan) -> None:
        for shard, cost in self.problem.costs(table, plan):
            self.seconds[shard.rank] += cost.seconds
            self.free[shard.rank] -= cost.kept_bytes
            here = (cost.kept_bytes, f"table {table.name!r}, {plan.placements[table.name].sharding},")
            self._largest[shard.rank] = max(here, self._largest.get(shard.rank, here))

    def check(self) -> None:
        """Nothing, where what was put on given ranks has room there."""
        worst = min(range(len(self.free)), key=self.free.__getitem__)
        if self.free[worst] < 0:
            short, room = written_bytes(-self.free[worst]), self.problem.capacity
            if room < 0:
                buffers = written_bytes(self.problem.client_bytes)
                raise NoFeasiblePlan(
                    f"every device is {written_bytes(-room)} short before it holds any table: the ids and vectors of "
                    f"its {self.problem.batch_size:,} examples take {buffers}",
                    "give the devices more memory, or make training.batch_size smaller",
                )
            size, name = self._largest[worst]
            raise NoFeasiblePlan(
                f"device {worst} is {short} short: it has {written_bytes(room)} for tables, and {name} alone takes "
                f"{written_bytes(size)} of it",
                "split what lies there over more devices, or give them more memory",
            )


def _over_hosts(problem: Problem, tables: Iterable[TableSpec], loads: Loads) -> Iterable[tuple[TableSpec, int]]:
    """A host for each table that is split by rows over one."""
    found, topology = list(tables), problem.topology
    if not found:
        return []
    costs = [shard_costs(problem, table, TableSplit("table_row_wise")) for table in found]
    hosts = [topology.ranks_of(host) for host in range(topology.hosts)]
    room = Capacity(
        costs=[max(cost.seconds for cost in each) for each in costs],
        sizes=[max(cost.kept_bytes for cost in each) for each in costs],
        capacities=[min(loads.free[rank] for rank in ranks) for ranks in hosts],
        names=[f"table {table.name!r}, table_row_wise," for table in found],
        before=[max(loads.seconds[rank] for rank in ranks) for ranks in hosts],
    )
    return zip(found, balanced(room).bins, strict=True)


def _over_devices(
    problem: Problem,
    plan: Plan,
    tables: list[TableSpec],
    splits: Mapping[str, TableSplit],
    loads: Loads,
    assign: Assign,
) -> Plan:
    """A rank for each whole table and each range of columns."""
    items = [item for table in tables for item in items_of(problem, table, splits[table.name])]
    ranks: dict[str, list[int]] = {}
    for item, rank in zip(items, assign(problem, plan, items, loads), strict=True):
        ranks.setdefault(item.table.name, []).append(rank)
    placements = {name: Placement(splits[name].sharding, tuple(each)) for name, each in ranks.items()}
    every = {**plan.placements, **placements}
    return Plan(plan.world_size, {table.name: every[table.name] for table in problem.tables}, plan.local_size)


def items_of(problem: Problem, table: TableSpec, split: TableSplit) -> list[Item]:
    """The table, or its ranges of columns."""
    where = _plan(problem).placed(table.name, split.sharding, (0,) * split.parts)
    name = f"table {table.name!r}"
    return [
        Item(table, split, shard, cost, name + (f" in {split.parts} column parts" if number else ""))
        for number, (shard, cost) in enumerate(problem.costs(table, where))
    ]


def _plan(problem: Problem) -> Plan:
    return Plan(problem.topology.world_size, {}, problem.topology.devices)
