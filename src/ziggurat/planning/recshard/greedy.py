"""Makes a plan without a solver: fills fast memory by density, balances tables over devices, then improves by swaps.

1. Fast memory is filled as if all devices shared one pooled memory; that gives the number of fast rows of each table
   (:mod:`.filling`).
2. Tables that are split or replicated, or have prescribed devices, are placed there with these fast rows.
3. All other tables are balanced by the seconds they then take (:mod:`~ziggurat.planning.balance`): once regardless of
   the size of their fast rows, then with increasing slack for it. Each device then refills its fast memory with the
   tables it got. The best of these starts is kept.
4. Single tables are moved off the slowest device, and pairs swapped with it, as long as it gets faster
   (:mod:`.local_search`).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.planning.balance import BalanceProblem, balanced
from ziggurat.planning.cost import ShardCost, row_bytes
from ziggurat.planning.plan_estimate import predict
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import format_bytes
from ziggurat.planning.recshard.filling import Filling
from ziggurat.planning.recshard.local_search import Devices, improved_by_swaps
from ziggurat.planning.rules import device_seconds

SLACKS = (1.0, 1.02, 1.1, 1.3)
"""Factors by which the fast rows assigned to a device may exceed its fast memory, tried in turn."""


class Greedy:
    """See the module.

    Args:
        problem: the problem, with at least one table.
        filling: decides the fast rows of its tables.
        candidates: table -> its possible placements.
        rows: table -> fast rows if all devices shared one pooled memory.
    """

    def __init__(
        self, problem: Problem, filling: Filling, candidates: Mapping[str, Sequence[Placement]], rows: Mapping[str, int]
    ) -> None:
        self.problem, self.filling, self.candidates, self.rows = problem, filling, candidates, rows

    def plan(self, improve: bool = True) -> Plan:
        """Returns a placement for every table; moves and swaps are made only if ``improve``.

        Two plans are made, one with hot tables split and one with them whole, and the better one is returned. Splitting
        is not always feasible: a split table needs buffers on every device.

        Raises:
            NoFeasiblePlan: a table fits on no device; the message names it.
        """
        found: list[Plan] = []
        problems: list[NoFeasiblePlan] = []
        for split in (True, False):
            try:
                found.append(self._planned(improve, split))
            except NoFeasiblePlan as error:
                problems.append(error)
            if found and not improve:
                break
        if not found:
            raise problems[-1]
        return min(found, key=self._slowest)

    def _planned(self, improve: bool, split: bool) -> Plan:
        world = self.problem.topology.world_size
        chosen = {table.name: self._chosen(table, split) for table in self.problem.tables}
        floating = [table for table in self.problem.tables if chosen[table.name] is None]
        placements = {name: placement for name, placement in chosen.items() if placement is not None}
        least = {
            table.name: 0 if self.problem.topology.slow_memory_bytes else table.rows for table in self.problem.tables
        }
        plan = self._partial_plan({name: self._with_rows(each, least[name]) for name, each in placements.items()})
        buffers = sum(self.problem.whole(table).buffer_bytes for table in floating) / world
        for table in sorted(self.problem.tables, key=lambda table: -self.problem.whole(table).kept_bytes):
            if table.name in placements and placements[table.name].sharding != "data_parallel":
                plan = self._with_fast_rows(plan, table, buffers)
        fixed = [table for table in self.problem.tables if chosen[table.name] is not None]
        balancing = self._balancing(plan, fixed, floating)
        bins = balanced(balancing).bins
        best = self._filled(plan, floating, bins)
        check_capacity(self.problem, best)
        if not improve or world == 1:
            return best
        starts = [
            (best, bins),
            *(
                (self._filled(plan, floating, each), each)
                for each in self._balanced_by_fast_memory(plan, floating, balancing)
            ),
        ]
        return self._improved_by_swaps(plan, floating, min(starts, key=lambda each: self._slowest(each[0]))[1])

    def improved_from(self, placements: Mapping[str, Placement]) -> Plan:
        """Returns ``placements`` as a plan, improved by moves and swaps of whole tables that may be anywhere."""
        movable = {name for name, candidates in self.candidates.items() if len(candidates) > 1}
        floating = [
            table
            for table in self.problem.tables
            if table.name in movable and placements[table.name].sharding == "table_wise"
        ]
        bins = [placements[table.name].ranks[0] for table in floating]
        fixed = {name: placements[name] for name in placements if name not in {table.name for table in floating}}
        return self._improved_by_swaps(self._partial_plan(fixed), floating, bins)

    def _improved_by_swaps(self, plan: Plan, floating: Sequence[TableSpec], bins: Sequence[int]) -> Plan:
        """Improves the assignment of the whole tables by moves and swaps; ``plan`` has placed all others."""
        fast, slow = self._free(plan)
        devices = Devices(
            demands=[self.filling.demands[table.name] for table in floating],
            fast=fast,
            total=self._total_capacity(fast, slow),
            before=device_seconds(self.problem, plan),
        )
        return self._filled(plan, floating, improved_by_swaps(devices, bins))

    def _partial_plan(self, placements: Mapping[str, Placement]) -> Plan:
        topology = self.problem.topology
        return Plan(topology.world_size, dict(placements), topology.devices)

    def _chosen(self, table: TableSpec, may_split: bool) -> Placement | None:
        """Returns the placement of a table that is placed first, or None if it stays whole and can go to any device.

        Without ``may_split``, every table that can be whole on any device stays so.
        """
        candidates = self.candidates[table.name]
        whole = [each for each in candidates if each.sharding == "table_wise"]
        split = [each for each in candidates if each.sharding != "table_wise"]
        best = min(split, key=lambda each: self._costliest(table, each), default=None)
        if len(whole) > 1 and (
            not may_split or best is None or self._costliest(table, whole[0]) <= self._costliest(table, best)
        ):
            return None
        return best or whole[0]

    def _costliest(self, table: TableSpec, placement: Placement) -> float:
        return max(cost.seconds for cost in self._costs(table, placement, self.rows.get(table.name, table.rows)))

    def _costs(self, table: TableSpec, placement: Placement, fast_rows: int) -> list[ShardCost]:
        alone = self._partial_plan({table.name: self._with_rows(placement, fast_rows)})
        return [cost for _, cost in self.problem.costs(table, alone)]

    def _with_rows(self, placement: Placement, fast_rows: int) -> Placement:
        return placement if placement.sharding == "data_parallel" else replace(placement, fast_rows=fast_rows)

    def _with_fast_rows(self, plan: Plan, table: TableSpec, buffers: float) -> Plan:
        """Returns the plan with the intended number of fast rows of a placed table.

        The number is lower if fast memory is short, and higher if slow memory is. ``buffers`` bytes of each device's
        fast memory are left for tables that are not placed yet.
        """
        placed = plan.placements[table.name]
        others = {name: placement for name, placement in plan.placements.items() if name != table.name}
        fast, slow = self._free(self._partial_plan(others))

        def with_rows(fast_rows: int) -> Plan:
            return plan.placed(table.name, placed.sharding, placed.ranks, fast_rows)

        def spare(fast_rows: int) -> tuple[float, float]:
            for shard, cost in (found := self.problem.costs(table, with_rows(fast_rows))):
                fast[shard.rank] -= cost.kept_bytes
                slow[shard.rank] -= cost.slow_bytes
            left = min(fast[shard.rank] for shard, _ in found), min(slow[shard.rank] for shard, _ in found)
            for shard, cost in found:
                fast[shard.rank] += cost.kept_bytes
                slow[shard.rank] += cost.slow_bytes
            return left

        if not self.problem.topology.slow_memory_bytes:
            return with_rows(table.rows)
        least = bisect_left(range(table.rows), True, key=lambda rows: spare(rows)[1] >= 0)
        most = bisect_left(range(table.rows + 1), True, key=lambda rows: spare(rows)[0] < buffers) - 1
        return with_rows(max(min(max(self.rows[table.name], least), most), 0))

    def _free(self, plan: Plan) -> tuple[list[float], list[float]]:
        """Returns the bytes of fast and of slow memory that the placed tables leave on each device."""
        world = self.problem.topology.world_size
        fast, slow = [self.problem.capacity] * world, [float(self.problem.topology.slow_memory_bytes)] * world
        for table in self.problem.tables:
            if table.name in plan.placements:
                for shard, cost in self.problem.costs(table, plan):
                    fast[shard.rank] -= cost.kept_bytes
                    slow[shard.rank] -= cost.slow_bytes
        return fast, slow

    def _balancing(self, plan: Plan, fixed: Sequence[TableSpec], floating: Sequence[TableSpec]) -> BalanceProblem:
        """Returns the whole tables as items to balance; their bytes may be in either memory."""
        fast, slow = self._free(plan)
        worst = min(fast)
        if worst < 0:
            rank = fast.index(worst)
            raise NoFeasiblePlan(
                f"device {rank} is {format_bytes(-worst)} of fast memory short for {_names(fixed) or 'its ids'} alone",
                "split its tables over more devices, or give the devices more memory",
            )
        return BalanceProblem(
            costs=[self._seconds(table, self.rows[table.name]) for table in floating],
            sizes=[self.problem.whole(table).kept_bytes for table in floating],
            capacities=self._total_capacity(fast, slow),
            names=[f"table {table.name!r}" for table in floating],
            before=device_seconds(self.problem, plan),
        )

    def _total_capacity(self, fast: Sequence[float], slow: Sequence[float]) -> list[float]:
        """Returns the bytes of both memories of each device, less one row: the last one may fit into neither memory."""
        tables = self.problem.tables if self.problem.topology.slow_memory_bytes else ()
        row = max((row_bytes(table, table.dim) for table in tables), default=0)
        return [one + other - row for one, other in zip(fast, slow, strict=True)]

    def _seconds(self, table: TableSpec, fast_rows: int) -> float:
        return self._costs(table, Placement("table_wise", (0,)), fast_rows)[0].seconds

    def _filled(self, plan: Plan, floating: Sequence[TableSpec], bins: Sequence[int]) -> Plan:
        placements = dict(plan.placements)
        placements |= {
            table.name: Placement("table_wise", (rank,), 0) for table, rank in zip(floating, bins, strict=True)
        }
        ordered = {table.name: placements[table.name] for table in self.problem.tables}
        return self.filling.plan(Plan(plan.world_size, ordered, plan.local_size))

    def _balanced_by_fast_memory(
        self, plan: Plan, floating: Sequence[TableSpec], balancing: BalanceProblem
    ) -> Iterator[tuple[int, ...]]:
        """Yields balances in which each device's fast memory holds the intended fast rows, up to some slack.

        Balances that are infeasible, or that exceed the two memories together, are left out.
        """
        whole = Placement("table_wise", (0,))
        wanted = [self._costs(table, whole, self.rows[table.name])[0].kept_bytes for table in floating]
        fast, _ = self._free(plan)
        for slack in SLACKS:
            by_fast_memory = replace(balancing, sizes=wanted, capacities=[slack * each for each in fast])
            with contextlib.suppress(NoFeasiblePlan):
                bins = balanced(by_fast_memory).bins
                if balancing.fits(balancing.balance(bins)):
                    yield bins

    def _slowest(self, plan: Plan) -> float:
        return max(device_seconds(self.problem, plan))


def check_capacity(problem: Problem, plan: Plan) -> None:
    """Validates that each device has enough memory for ``plan``; returns None or raises.

    Raises:
        NoFeasiblePlan: naming a device that lacks memory.
    """
    for load in predict(problem, plan).devices:
        if load.spare_bytes < 0 or load.slow_spare_bytes < 0:
            fast = load.spare_bytes < 0
            short, memory = (-load.spare_bytes, "fast") if fast else (-load.slow_spare_bytes, "slow")
            raise NoFeasiblePlan(f"device {load.rank} lacks {format_bytes(short)} of {memory} memory")


def _names(tables: Sequence[TableSpec], most: int = 3) -> str:
    """Returns for example ``tables 'a', 'b' and 4 more``; an empty string for no tables."""
    shown = ", ".join(repr(table.name) for table in tables[:most])
    more = f" and {len(tables) - most} more" if len(tables) > most else ""
    return f"table{'s' if len(tables) > 1 else ''} {shown}{more}" if tables else ""
