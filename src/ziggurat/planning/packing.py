"""Finds a plan in short memory: splits as few tables as it can, each in the way that needs least memory.

Splitting a table makes its parts smaller, but every part keeps buffers for the whole batch: by rows, each device keeps
the partial sums of all examples. So it helps for the largest tables and harms for small ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import column_parts, must_replicate
from ziggurat.planning.placement import TableSplit, place_tables, shard_costs, split_options
from ziggurat.planning.problem import Problem

EACH_UP_TO = 16
"""Up to this number of split tables every number is tried, then each a quarter larger than the last one."""

Bytes = tuple[float, float]


def plan_in_short_memory(
    problem: Problem, splits: Mapping[str, TableSplit], options: Callable[[TableSpec], Sequence[TableSplit]]
) -> tuple[dict[str, TableSplit], Plan] | None:
    """Returns a plan that fits, and the splits of its tables; None if none is found.

    Args:
        problem: the tables and devices.
        splits: the split of each table, those that the user or the optimizer requires among them.
        options: table -> the splits, or the replication, that may take the place of the given one; empty for tables
            that keep it.
    """
    if not may_fit(problem):
        return None
    choices = {table.name: list(options(table)) for table in problem.tables}
    movable = [table for table in problem.tables if choices[table.name]]
    movable.sort(key=lambda table: (-problem.whole(table).kept_bytes, table.name))
    unsplit = {**splits, **{table.name: _unsplit(problem, table, splits, choices) for table in movable}}
    for prefer in (_by_total, _by_rows, _by_largest):
        best = {table.name: min(choices[table.name], key=partial(prefer, problem, table)) for table in movable}
        for count in _counts(len(movable)):
            chosen = {**unsplit, **{table.name: best[table.name] for table in movable[:count]}}
            try:
                return chosen, place_tables(problem, chosen)
            except NoFeasiblePlan:
                continue
    return None


def _unsplit(
    problem: Problem,
    table: TableSpec,
    splits: Mapping[str, TableSplit],
    choices: Mapping[str, Sequence[TableSplit]],
) -> TableSplit:
    """Returns the table's given split, or its replication if all copies take fewer bytes: they buffer no vectors."""
    copies = [split for split in choices[table.name] if split.sharding == "data_parallel"]
    return min([splits[table.name], *copies], key=partial(_by_total, problem, table))


def may_fit(problem: Problem) -> bool:
    """Returns whether the devices have the bytes that all tables need at least, each split in the leanest way.

    If not, no planner can find a plan in which all rows are in fast memory.
    """
    total = 0.0
    for table in problem.tables:
        least, largest = _least_bytes(problem, table)
        total += least
        if largest > problem.capacity:
            return False
    return total <= problem.capacity * problem.topology.world_size


def _least_bytes(problem: Problem, table: TableSpec) -> Bytes:
    """Returns the fewest bytes that the table can take, and the fewest that its largest part can."""
    constraint = problem.constraints.get(table.name)
    if constraint is not None:
        possible = [TableSplit(constraint.sharding, parts) for parts in (1, *column_parts(table, problem.topology))]
        possible = possible if constraint.sharding == "column_wise" else possible[:1]
    elif must_replicate(table, problem.topology.kind):
        possible = [TableSplit("data_parallel")]
    else:
        possible = [TableSplit("table_wise"), TableSplit("data_parallel"), *split_options(problem, table, fused=False)]
    sizes = [_by_total(problem, table, split) for split in possible]
    return min(total for total, _ in sizes), min(largest for _, largest in sizes)


def _by_total(problem: Problem, table: TableSpec, split: TableSplit) -> Bytes:
    """Returns the bytes of all parts together, then those of the largest part."""
    sizes = [cost.kept_bytes for cost in shard_costs(problem, table, split)]
    return float(sum(sizes)), float(max(sizes))


def _by_rows(problem: Problem, table: TableSpec, split: TableSplit) -> Bytes:
    """Returns the bytes of all parts together; splits by columns, whose parts are large, are the last choice."""
    return float(split.sharding in ("column_wise", "grid")), _by_total(problem, table, split)[0]


def _by_largest(problem: Problem, table: TableSpec, split: TableSplit) -> Bytes:
    """Returns the bytes of the largest part, then those of all parts together."""
    total, largest = _by_total(problem, table, split)
    return largest, total


def _counts(most: int) -> Iterator[int]:
    """Yields numbers of tables to split, rising from none to all."""
    count = 0
    while count < most:
        yield count
        count += 1 if count < EACH_UP_TO else count // 4
    yield most
