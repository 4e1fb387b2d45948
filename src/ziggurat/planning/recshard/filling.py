"""Fast memory given to the rows that save most by it, byte for byte, until it is full.

A row in fast memory instead of slow saves ``(n·4·C + U·(8·C + 2·s)) · (1/slow − 1/fast bandwidth)`` seconds a step,
n its ids and U the probability that a step touches it (:mod:`~ziggurat.planning.cost`). Falling frequency is falling
saving, so each table's fast rows are its first ones; and as rows are small beside a memory, taking them by falling
saving a byte is the best that can be done once it is known which tables share a device.
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
from ziggurat.planning.usage import touched


@dataclass(frozen=True)
class Demand:
    """What a table asks of fast memory.

    Attributes:
        row_bytes: of a row with its state.
        sizes: rows of each run that is used alike, hottest first, (N,).
        savings: seconds of a step that a byte in fast memory saves, of each run, falling, (N,).
        buffer_bytes: of fast memory that it needs in any case.
        every_bytes: that it needs of both memories.
        slow_seconds: of a step, were all of it slow.
    """

    row_bytes: int
    sizes: Floats
    savings: Floats
    buffer_bytes: int
    every_bytes: int
    slow_seconds: float

    @classmethod
    def of(cls, problem: Problem, table: TableSpec) -> Demand:
        """The demand of ``table`` where its rows are whole."""
        curve, each, topology = problem.curve(table), row_bytes(table, table.dim), problem.topology
        ids = topology.world_size * problem.batch_size * curve.ids_per_row
        traffic = ids * curve.shares * FLOAT * table.dim + touched(curve.shares, ids) * 2 * each
        slower = 1 / topology.slow_bandwidth - 1 / topology.lookup_bandwidth if topology.slow_bandwidth else 0.0
        savings, whole = traffic * slower / each, problem.whole(table)
        slow_seconds = whole.seconds + float(savings @ curve.sizes) * each
        return cls(each, curve.sizes, savings, whole.buffer_bytes, whole.kept_bytes, slow_seconds)

    @cached_property
    def saved(self) -> tuple[Floats, Floats]:
        """(bytes, seconds) that the first runs take and save, from none of them to all, (N + 1,) each."""
        sums = (np.cumsum(values) for values in (self.sizes, self.sizes * self.savings))
        rows, saved = (np.concatenate([[0.0], each]) * self.row_bytes for each in sums)
        return rows, saved

    def priced(self, price: Floats) -> Floats:
        """Seconds of a step, and of the fast memory that is worth having at such prices in seconds a byte."""
        taken = np.searchsorted(-self.savings, -price)
        rows, saved = self.saved
        return self.slow_seconds - saved[taken] + price * (self.buffer_bytes + rows[taken])


def water_filled(demands: Sequence[Demand], room: float) -> list[int]:
    """How many rows of each table ``room`` bytes hold, where those that save most by the byte come first.

    The row that does not fit any more is passed over, and so are its table's further ones; a smaller one may fit.
    """
    if not demands:
        return []
    table_N = np.repeat(np.arange(len(demands)), [len(each.sizes) for each in demands])
    sizes_N = np.concatenate([each.sizes for each in demands])
    bytes_N = sizes_N * np.array([each.row_bytes for each in demands])[table_N]
    order_N = np.argsort(-np.concatenate([each.savings for each in demands]), kind="stable")
    filled_N = np.cumsum(bytes_N[order_N])
    whole = int(np.searchsorted(filled_N, room, side="right"))
    taken = order_N[:whole]
    rows = np.bincount(table_N[taken], weights=sizes_N[taken], minlength=len(demands))
    left = room - (filled_N[whole - 1] if whole else 0.0)
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


def load(demands: Sequence[Demand], room: float) -> tuple[float, float]:
    """Seconds of a step on a device whose fast memory has ``room`` bytes for these tables, buffers included; and its
    price, the seconds that one byte more would save. As good as :func:`water_filled`, but for less than a row."""
    seconds = sum(each.slow_seconds for each in demands)
    room -= sum(each.buffer_bytes for each in demands)
    if not demands or room <= 0:
        return seconds, max((float(each.savings[0]) for each in demands), default=0.0)
    savings_N = np.concatenate([each.savings for each in demands])
    bytes_N = np.concatenate([each.sizes * each.row_bytes for each in demands])
    order_N = np.argsort(-savings_N, kind="stable")
    savings_N, filled_N = savings_N[order_N], np.cumsum(bytes_N[order_N])
    saved_N = np.cumsum(bytes_N[order_N] * savings_N)
    whole = int(np.searchsorted(filled_N, room, side="right"))
    if whole == len(filled_N):
        return seconds - float(saved_N[-1]), 0.0
    filled, saved = (filled_N[whole - 1], saved_N[whole - 1]) if whole else (0.0, 0.0)
    price = float(savings_N[whole])
    return seconds - float(saved) - (room - float(filled)) * price, price


class Filling:
    """Fills the fast memory of devices."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.demands = {table.name: Demand.of(problem, table) for table in problem.tables}

    def over_all(self, copies: Mapping[str, int]) -> dict[str, int]:
        """Table -> fast rows, were all devices one; tables of ``copies`` lie on that many whole, and fast."""
        problem = self.problem
        room = problem.capacity * problem.topology.world_size
        for table in problem.tables:
            whole, count = problem.whole(table), copies.get(table.name, 0)
            room -= count * whole.kept_bytes if count else whole.buffer_bytes
        others = [table.name for table in problem.tables if table.name not in copies]
        rows = water_filled([self.demands[name] for name in others], max(room, 0.0))
        if not problem.topology.slow_memory_bytes:
            rows = [self.problem.curve(table).rows for table in problem.tables if table.name not in copies]
        return dict(zip(others, rows, strict=True))

    def device(self, tables: Sequence[TableSpec], room: float) -> dict[str, int]:
        """Table -> fast rows, of whole tables that share ``room`` bytes of a device's fast memory, buffers included."""
        if not self.problem.topology.slow_memory_bytes:
            return {table.name: table.rows for table in tables}
        room -= sum(self.problem.whole(table).buffer_bytes for table in tables)
        rows = water_filled([self.demands[table.name] for table in tables], max(room, 0.0))
        return dict(zip((table.name for table in tables), rows, strict=True))

    def plan(self, plan: Plan) -> Plan:
        """``plan`` with the fast memory that split tables leave given to the whole ones, and what then is left to the
        split ones."""
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
            for name, rows in self.device(tables, free[rank]).items():
                placements[name] = replace(placements[name], fast_rows=rows)
        filled = replace(plan, placements=placements)
        for rank, tables in whole.items():
            free[rank] -= sum(cost.kept_bytes for table in tables for _, cost in problem.costs(table, filled))
        return self._plain(self._raised(filled, free))

    def _raised(self, plan: Plan, free: list[float]) -> Plan:
        """More rows of split tables fast, as far as ``free`` bytes of each device go."""
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

    def _plain(self, plan: Plan) -> Plan:
        """Without an order of rows where it decides nothing: in tables that are fast throughout and not cut by rows."""

        def plain(table: TableSpec, placement: Placement) -> Placement:
            everywhere = placement.fast_rows == table.rows and plan.row_parts(table.name) == 1
            return replace(placement, fast_rows=None) if everywhere else placement

        placements = {table.name: plain(table, plan.placements[table.name]) for table in self.problem.tables}
        return replace(plan, placements=placements)
