"""Turns the split of each table into a plan: shards whose ranks are not prescribed are balanced over the devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan, Shard, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.planning.balance import BalanceProblem, balanced, prefer_contiguous
from ziggurat.planning.constraints import COLUMN_MULTIPLE, column_parts, fixed_ranks, stays_fused
from ziggurat.planning.cost import ShardCost
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import format_bytes


@dataclass(frozen=True, slots=True)
class TableSplit:
    """How a table is split, before its ranks are chosen.

    Attributes:
        sharding: the sharding of the table.
        parts: number of column ranges, if it is split column-wise.
        ranks: the ranks, if they are chosen already.
    """

    sharding: Sharding
    parts: int = 1
    ranks: tuple[int, ...] | None = None


def split_options(problem: Problem, table: TableSpec, fused: bool) -> list[TableSplit]:
    """Returns every split of ``table`` over several devices; with ``fused``, only those of FBGEMM's kernels."""
    topology = problem.topology
    if topology.world_size == 1 or table.rows < topology.world_size:
        return []
    options = [TableSplit("row_wise")]
    two_levels = topology.hosts > 1 and topology.devices > 1
    if two_levels:
        options.append(TableSplit("table_row_wise"))
    columns = not problem.offloads_rows and (not fused or stays_fused(table, "column_wise"))
    if two_levels and table.dim % (COLUMN_MULTIPLE * topology.hosts) == 0 and columns:
        options.append(TableSplit("grid"))
    if columns:
        options += [TableSplit("column_wise", parts) for parts in column_parts(table, topology)]
    return options


def shard_costs(problem: Problem, table: TableSpec, split: TableSplit) -> list[ShardCost]:
    """Returns the cost of each shard, whatever ranks are chosen; of a replicated table, the cost of each copy."""
    return [cost for _, cost in representative_shards(problem, table, split)]


def representative_shards(problem: Problem, table: TableSpec, split: TableSplit) -> list[tuple[Shard, ShardCost]]:
    """Returns every shard with its cost; if the ranks are not chosen yet, shards are on some possible ranks."""
    ranks = predetermined_ranks(problem, split) or (
        problem.topology.ranks_of(0) if split.sharding == "table_row_wise" else (0,) * split.parts
    )
    return problem.costs(table, _empty_plan(problem).placed(table.name, split.sharding, ranks))


def predetermined_ranks(problem: Problem, split: TableSplit) -> tuple[int, ...] | None:
    """Returns the ranks if the split names them or the sharding prescribes them, else None."""
    return split.ranks or fixed_ranks(split.sharding, problem.topology)


@dataclass(frozen=True, slots=True)
class Item:
    """A whole table, or a range of its columns, that can be placed on any device."""

    table: TableSpec
    split: TableSplit
    shard: Shard
    cost: ShardCost
    name: str


Assign = Callable[[Problem, Plan, Sequence[Item], "Loads"], Sequence[int]]
"""Chooses a rank for every item, given the plan of the tables placed so far and the resulting loads."""


def assign_by_balance(problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
    """Assigns items by the best balance of modelled seconds that :mod:`~ziggurat.planning.balance` finds.

    Raises:
        NoFeasiblePlan: an item fits on no device; the message names its table.
    """
    balancing = BalanceProblem(
        costs=[item.cost.seconds for item in items],
        sizes=[item.cost.kept_bytes for item in items],
        capacities=loads.free,
        names=[item.name for item in items],
        before=loads.seconds,
    )
    return prefer_contiguous(balancing, balanced(balancing)).bins


def place_tables(problem: Problem, splits: Mapping[str, TableSplit], assign: Assign = assign_by_balance) -> Plan:
    """Places the tables on the devices: first those with predetermined ranks, then those split over a host, then the
    rest.

    Args:
        problem: the tables and devices.
        splits: table -> how it is split.
        assign: chooses a rank for each whole table and each range of columns.

    Raises:
        NoFeasiblePlan: a shard fits on no device; the message names its table.
    """
    plan, loads = _empty_plan(problem), Loads(problem)
    floating: dict[str, list[TableSpec]] = {}
    for table in problem.tables:
        split = splits[table.name]
        ranks = predetermined_ranks(problem, split)
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
    """Modelled seconds and free bytes of each device, given the tables placed so far."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.seconds = [0.0] * problem.topology.world_size
        self.free = [problem.capacity] * problem.topology.world_size
        self._largest: dict[int, tuple[int, str]] = {}  # rank -> bytes and name of its largest shard

    def add(self, table: TableSpec, plan: Plan) -> None:
        for shard, cost in self.problem.costs(table, plan):
            self.seconds[shard.rank] += cost.seconds
            self.free[shard.rank] -= cost.kept_bytes
            here = (cost.kept_bytes, f"table {table.name!r}, {plan.placements[table.name].sharding},")
            self._largest[shard.rank] = max(here, self._largest.get(shard.rank, here))

    def check(self) -> None:
        """Validates that every device has enough memory for its shards.

        Raises:
            NoFeasiblePlan: naming the device that lacks most, and its largest shard.
        """
        worst = min(range(len(self.free)), key=self.free.__getitem__)
        if self.free[worst] < 0:
            short, capacity = format_bytes(-self.free[worst]), self.problem.capacity
            if capacity < 0:
                buffers = format_bytes(self.problem.client_bytes)
                raise NoFeasiblePlan(
                    f"every device is {format_bytes(-capacity)} short before it holds any table: ids and vectors of "
                    f"its {self.problem.batch_size:,} examples take {buffers}",
                    "give the devices more memory, or make training.batch_size smaller",
                )
            size, name = self._largest[worst]
            raise NoFeasiblePlan(
                f"device {worst} is {short} short: it has {format_bytes(capacity)} for tables, and {name} alone takes "
                f"{format_bytes(size)} of it",
                "split its tables over more devices, or give the devices more memory",
            )


def _over_hosts(problem: Problem, tables: Iterable[TableSpec], loads: Loads) -> Iterable[tuple[TableSpec, int]]:
    """Chooses a host for each table that is split by rows over the ranks of one host."""
    found, topology = list(tables), problem.topology
    if not found:
        return []
    costs = [shard_costs(problem, table, TableSplit("table_row_wise")) for table in found]
    hosts = [topology.ranks_of(host) for host in range(topology.hosts)]
    balancing = BalanceProblem(
        costs=[max(cost.seconds for cost in each) for each in costs],
        sizes=[max(cost.kept_bytes for cost in each) for each in costs],
        capacities=[min(loads.free[rank] for rank in ranks) for ranks in hosts],
        names=[f"table {table.name!r}, table_row_wise," for table in found],
        before=[max(loads.seconds[rank] for rank in ranks) for ranks in hosts],
    )
    return zip(found, balanced(balancing).bins, strict=True)


def _over_devices(
    problem: Problem,
    plan: Plan,
    tables: list[TableSpec],
    splits: Mapping[str, TableSplit],
    loads: Loads,
    assign: Assign,
) -> Plan:
    """Chooses a rank for each whole table and each range of columns."""
    items = [item for table in tables for item in items_of(problem, table, splits[table.name])]
    ranks: dict[str, list[int]] = {}
    for item, rank in zip(items, assign(problem, plan, items, loads), strict=True):
        ranks.setdefault(item.table.name, []).append(rank)
    placements = {name: Placement(splits[name].sharding, tuple(each)) for name, each in ranks.items()}
    every = {**plan.placements, **placements}
    return Plan(plan.world_size, {table.name: every[table.name] for table in problem.tables}, plan.local_size)


def items_of(problem: Problem, table: TableSpec, split: TableSplit) -> list[Item]:
    """Returns the table as one item, or an item for each of its column ranges."""
    placed = _empty_plan(problem).placed(table.name, split.sharding, (0,) * split.parts)
    name = f"table {table.name!r}"
    return [
        Item(table, split, shard, cost, name + (f" in {split.parts} column parts" if number else ""))
        for number, (shard, cost) in enumerate(problem.costs(table, placed))
    ]


def _empty_plan(problem: Problem) -> Plan:
    return Plan(problem.topology.world_size, {}, problem.topology.devices)
