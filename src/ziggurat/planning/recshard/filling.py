"""Fills fast memory with the rows that save most seconds a byte, until it is full.

A row in fast memory instead of slow saves ``(n·4·C + U·(8·C + 2·s)) · (1/slow − 1/fast bandwidth)`` seconds a step,
with n its ids and U the probability that a step touches it (:mod:`~ziggurat.planning.cost`). The saving falls with the
frequency, so each table's fast rows are its first ones. Because a row is small compared with a memory, taking rows by
falling saving a byte is optimal once it is known which tables share a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.planning.access_curve import Floats
from ziggurat.planning.cost import FLOAT, row_bytes
from ziggurat.planning.problem import Problem
from ziggurat.planning.usage import touch_probability


@dataclass(frozen=True)
class Demand:
    """A table's demand for memory, and what fast memory saves it; N runs of rows that are looked up equally often.

    Attributes:
        row_bytes: bytes of a row with its state.
        sizes: number of rows of each run, hottest first, (N,).
        savings: seconds a step that a byte in fast memory saves, for each run, falling, (N,).
        buffer_bytes: bytes of fast memory that the table needs even if all its rows are slow.
        total_bytes: bytes that it needs of both memories together.
        slow_seconds: seconds of a step if all rows are slow.
    """

    row_bytes: int
    sizes: Floats
    savings: Floats
    buffer_bytes: int
    total_bytes: int
    slow_seconds: float

    @classmethod
    def of(cls, problem: Problem, table: TableSpec) -> Demand:
        """Returns the demand of ``table``, unsplit, on one device."""
        curve, each, topology = problem.curve(table), row_bytes(table, table.dim), problem.topology
        ids, among = (topology.world_size * each * curve.ids_per_row for each in (problem.looked_up, problem.read))
        traffic = ids * curve.shares * FLOAT * table.dim + touch_probability(curve.shares, among) * 2 * each
        slower = 1 / topology.slow_bandwidth - 1 / topology.lookup_bandwidth if topology.slow_bandwidth else 0.0
        savings, whole = traffic * slower / each, problem.whole(table)
        slow_seconds = whole.seconds + float(savings @ curve.sizes) * each
        return cls(each, curve.sizes, savings, whole.buffer_bytes, whole.kept_bytes, slow_seconds)

    @cached_property
    def saved(self) -> tuple[Floats, Floats]:
        """(bytes, seconds) that the first 0, 1, …, N runs take of fast memory and save; (N + 1,) each."""
        sums = (np.cumsum(values) for values in (self.sizes, self.sizes * self.savings))
        rows, saved = (np.concatenate([[0.0], each]) * self.row_bytes for each in sums)
        return rows, saved

    def priced(self, price: Floats) -> Floats:
        """Returns the table's cost in seconds a step at each price of fast memory, in seconds a byte.

        The cost is the seconds of a step plus the price of the fast memory taken. The table takes as much as saves more
        than it costs.
        """
        taken = np.searchsorted(-self.savings, -price)
        rows, saved = self.saved
        return self.slow_seconds - saved[taken] + price * (self.buffer_bytes + rows[taken])


def water_filling(demands: Sequence[Demand], capacity: float) -> list[int]:
    """Returns how many rows of each table go into ``capacity`` bytes, taking rows by falling saving a byte.

    A row that does not fit any more is skipped, and so are the further rows of its table; a smaller row of another
    table may still fit.
    """
    if not demands:
        return []
    table_N = np.repeat(np.arange(len(demands)), [len(each.sizes) for each in demands])
    sizes_N = np.concatenate([each.sizes for each in demands])
    bytes_N = sizes_N * np.array([each.row_bytes for each in demands])[table_N]
    order_N = np.argsort(-np.concatenate([each.savings for each in demands]), kind="stable")
    filled_N = np.cumsum(bytes_N[order_N])
    whole = int(np.searchsorted(filled_N, capacity, side="right"))
    taken = order_N[:whole]
    rows = np.bincount(table_N[taken], weights=sizes_N[taken], minlength=len(demands))
    left = capacity - (filled_N[whole - 1] if whole else 0.0)
    open_tables = set(range(len(demands)))
    for run in order_N[whole:].tolist():
        table = int(table_N[run])
        if not open_tables or left < min(demands[each].row_bytes for each in open_tables):
            break
        if table in open_tables:
            more = min(sizes_N[run], max(left // demands[table].row_bytes, 0))
            rows[table] += more
            left -= more * demands[table].row_bytes
            if more < sizes_N[run]:
                open_tables.remove(table)
    return [int(each) for each in rows]


def load(demands: Sequence[Demand], capacity: float) -> tuple[float, float]:
    """Returns the seconds of a step on a device that holds these tables, and the price of its fast memory.

    The price is the seconds that one more byte would save. The result equals that of :func:`water_filling` up to the
    fraction of a row.

    Args:
        demands: the tables of the device.
        capacity: bytes of fast memory for them, buffers included.
    """
    seconds = sum(each.slow_seconds for each in demands)
    capacity -= sum(each.buffer_bytes for each in demands)
    if not demands or capacity <= 0:
        return seconds, max((float(each.savings[0]) for each in demands), default=0.0)
    savings_N = np.concatenate([each.savings for each in demands])
    bytes_N = np.concatenate([each.sizes * each.row_bytes for each in demands])
    order_N = np.argsort(-savings_N, kind="stable")
    savings_N, filled_N = savings_N[order_N], np.cumsum(bytes_N[order_N])
    saved_N = np.cumsum(bytes_N[order_N] * savings_N)
    whole = int(np.searchsorted(filled_N, capacity, side="right"))
    if whole == len(filled_N):
        return seconds - float(saved_N[-1]), 0.0
    filled, saved = (filled_N[whole - 1], saved_N[whole - 1]) if whole else (0.0, 0.0)
    price = float(savings_N[whole])
    return seconds - float(saved) - (capacity - float(filled)) * price, price


class Filling:
    """Decides how many rows of each table are in fast memory.

    Args:
        problem: the tables and devices.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.demands = {table.name: Demand.of(problem, table) for table in problem.tables}

    def pooled_fast_rows(self, copies: Mapping[str, int]) -> dict[str, int]:
        """Returns table -> fast rows as if all devices shared one pooled memory.

        Args:
            copies: replicated table -> number of copies; these are whole and in fast memory, and not in the result.
        """
        problem = self.problem
        capacity = problem.capacity * problem.topology.world_size
        for table in problem.tables:
            whole, count = problem.whole(table), copies.get(table.name, 0)
            capacity -= count * whole.kept_bytes if count else whole.buffer_bytes
        others = [table.name for table in problem.tables if table.name not in copies]
        rows = water_filling([self.demands[name] for name in others], max(capacity, 0.0))
        if not problem.topology.slow_memory_bytes:
            rows = [self.problem.curve(table).rows for table in problem.tables if table.name not in copies]
        return dict(zip(others, rows, strict=True))

    def device_fast_rows(self, tables: Sequence[TableSpec], capacity: float) -> dict[str, int]:
        """Returns table -> fast rows, for whole tables on one device.

        Args:
            tables: the whole tables of the device.
            capacity: bytes of fast memory for them, buffers included.
        """
        if not self.problem.topology.slow_memory_bytes:
            return {table.name: table.rows for table in tables}
        capacity -= sum(self.problem.whole(table).buffer_bytes for table in tables)
        rows = water_filling([self.demands[table.name] for table in tables], max(capacity, 0.0))
        return dict(zip((table.name for table in tables), rows, strict=True))

    def plan(self, plan: Plan) -> Plan:
        """Returns ``plan`` with all fast memory given out.

        Whole tables get the fast memory that the split tables of their device leave; split tables then get the rest.
        """
        problem, placements = self.problem, dict(plan.placements)
        free = [problem.capacity] * problem.topology.world_size
        whole: dict[int, list[TableSpec]] = {}
        for table in problem.tables:
            placement = placements[table.name]
            if len(placement.ranks) == 1 and placement.sharding != "data_parallel":
                whole.setdefault(placement.ranks[0], []).append(table)
                continue
            for shard, cost in problem.costs(table, plan):
                free[shard.rank] -= cost.kept_bytes
        for rank, tables in whole.items():
            for name, rows in self.device_fast_rows(tables, free[rank]).items():
                placements[name] = replace(placements[name], fast_rows=rows)
        filled = replace(plan, placements=placements)
        for rank, tables in whole.items():
            free[rank] -= sum(cost.kept_bytes for table in tables for _, cost in problem.costs(table, filled))
        return self._without_needless_order(self._with_more_fast_rows(filled, free))

    def _with_more_fast_rows(self, plan: Plan, free: list[float]) -> Plan:
        """Returns the plan with more fast rows of split tables, as far as the ``free`` bytes of each device allow."""
        for table in self.problem.tables:
            placement = plan.placements[table.name]
            fast = placement.fast_rows
            if len(placement.ranks) == 1 or fast is None or fast == table.rows:
                continue
            before = self.problem.costs(table, plan)
            parts = plan.row_parts(table.name)
            each: dict[int, int] = {}
            for shard, _ in before:
                each[shard.rank] = each.get(shard.rank, 0) + row_bytes(table, shard.columns.size)
            more = parts * int(max(min(free[rank] // size for rank, size in each.items()), 0))
            if more:
                plan = plan.placed(table.name, placement.sharding, placement.ranks, min(fast + more, table.rows))
                for (shard, old), (_, new) in zip(before, self.problem.costs(table, plan), strict=True):
                    free[shard.rank] -= new.kept_bytes - old.kept_bytes
        return plan

    def _without_needless_order(self, plan: Plan) -> Plan:
        """Returns the plan without an order of rows for tables that are entirely fast and not split by rows."""

        def simplified(table: TableSpec, placement: Placement) -> Placement:
            everywhere = placement.fast_rows == table.rows and plan.row_parts(table.name) == 1
            return replace(placement, fast_rows=None) if everywhere else placement

        placements = {table.name: simplified(table, plan.placements[table.name]) for table in self.problem.tables}
        return replace(plan, placements=placements)
