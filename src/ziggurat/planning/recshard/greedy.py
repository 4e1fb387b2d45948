"""A plan without a solver: fast memory filled by density, tables balanced over devices, then exchanged.

1. Fast memory is filled as if all devices were one: so many rows of each table are fast (:mod:`.filling`).
2. Tables that lie on several devices, or on given ones, are put there with these rows.
3. All others are balanced by the seconds they then take (:mod:`~ziggurat.planning.balance`), once regardless of their
   fast rows and then with more and more room for them; each device fills its fast memory anew with the tables it got,
   and the best start counts.
4. Single tables are moved out of the slowest device and pairs swapped with it, as long as it gains
   (:mod:`.exchanging`).
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.tables import TableSpec
from ziggurat.planning.balance import Capacity, balanced
from ziggurat.planning.cost import ShardCost, row_bytes
from ziggurat.planning.plan_estimate import predict
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import written_bytes
from ziggurat.planning.recshard.filling import Filling
from ziggurat.planning.recshard.local_search import Devices, exchanged
from ziggurat.planning.rules import device_seconds

SLACKS = (1.0, 1.02, 1.1, 1.3)
"""How much more fast memory than there is may be wanted of a device, in times."""


class Greedy:
    """See the module.

    Args:
        problem: with at least one table.
        filling: of its devices.
        ways: table -> where it may lie.
        rows: table -> fast rows, were all devices one.
    """

    def __init__(
        self, problem: Problem, filling: Filling, ways: Mapping[str, Sequence[Placement]], rows: Mapping[str, int]
    ) -> None:
        self.problem, self.filling, self.ways, self.rows = problem, filling, ways, rows

    def plan(self, improved: bool = True) -> Plan:
        """A placement for every table; without moves and swaps unless ``improved``.

        Hot tables are split, and left whole; the better of the two plans counts. A split table needs buffers on every
        device, which may be what fast memory is too small for.

        Raises:
            NoFeasiblePlan: a table found no room; it is named.
        """
        found: list[Plan] = []
        problems: list[NoFeasiblePlan] = []
        for split in (True, False):
            try:
                found.append(self._planned(improved, split))
            except NoFeasiblePlan as error:
                problems.append(error)
            if found and not improved:
                break
        if not found:
            raise problems[-1]
        return min(found, key=self._slowest)

    def _planned(self, improved: bool, split: bool) -> Plan:
        world = self.problem.topology.world_size
        chosen = {table.name: self._chosen(table, split) for table in self.problem.tables}
        floating = [table for table in self.problem.tables if chosen[table.name] is None]
        fixed_ways = {name: way for name, way in chosen.items() if way is not None}
        least = {
            table.name: 0 if self.problem.topology.slow_memory_bytes else table.rows for table in self.problem.tables
        }
        plan = self._empty({name: self._with_rows(way, least[name]) for name, way in fixed_ways.items()})
        buffers = sum(self.problem.whole(table).buffer_bytes for table in floating) / world
        for table in sorted(self.problem.tables, key=lambda table: -self.problem.whole(table).kept_bytes):
            if table.name in fixed_ways and fixed_ways[table.name].sharding != "data_parallel":
                plan = self._raised(plan, table, buffers)
        fixed = [table for table in self.problem.tables if chosen[table.name] is not None]
        room = self._room(plan, fixed, floating)
        bins = balanced(room).bins
        best = self._filled(plan, floating, bins)
        check_room(self.problem, best)
        if not improved or world == 1:
            return best
        starts = [
            (best, bins),
            *((self._filled(plan, floating, each), each) for each in self._even(plan, floating, room)),
        ]
        return self._exchanged(plan, floating, min(starts, key=lambda each: self._slowest(each[0]))[1])

    def from_there(self, placements: Mapping[str, Placement]) -> Plan:
        """A placement for every table, after moves and swaps of those that may lie whole on any device."""
        movable = {name for name, ways in self.ways.items() if len(ways) > 1}
        floating = [
            table
            for table in self.problem.tables
            if table.name in movable and placements[table.name].sharding == "table_wise"
        ]
        bins = [placements[table.name].ranks[0] for table in floating]
        fixed = {name: placements[name] for name in placements if name not in {table.name for table in floating}}
        return self._exchanged(self._empty(fixed), floating, bins)

    def _exchanged(self, plan: Plan, floating: Sequence[TableSpec], bins: Sequence[int]) -> Plan:
        """Exchanges of whole tables beside those that ``plan`` has placed."""
        fast, slow = self._free(plan)
        devices = Devices(
            demands=[self.filling.demands[table.name] for table in floating],
            fast=fast,
            every=self._every(fast, slow),
            before=device_seconds(self.problem, plan),
        )
        return self._filled(plan, floating, exchanged(devices, bins))

    def _empty(self, placements: Mapping[str, Placement]) -> Plan:
        topology = self.problem.topology
        return Plan(topology.world_size, dict(placements), topology.devices)

    def _chosen(self, table: TableSpec, may_split: bool) -> Placement | None:
        """Where the table is put before any other; None where it lies whole on any device, as all do that can unless
        they ``may_split``."""
        ways = self.ways[table.name]
        whole = [way for way in ways if way.sharding == "table_wise"]
        split = [way for way in ways if way.sharding != "table_wise"]
        best = min(split, key=lambda way: self._costliest(table, way), default=None)
        if len(whole) > 1 and (
            not may_split or best is None or self._costliest(table, whole[0]) <= self._costliest(table, best)
        ):
            return None
        return best or whole[0]

    def _costliest(self, table: TableSpec, way: Placement) -> float:
        return max(cost.seconds for cost in self._costs(table, way, self.rows.get(table.name, table.rows)))

    def _costs(self, table: TableSpec, way: Placement, fast_rows: int) -> list[ShardCost]:
        alone = self._empty({table.name: self._with_rows(way, fast_rows)})
        return [cost for _, cost in self.problem.costs(table, alone)]

    def _with_rows(self, way: Placement, fast_rows: int) -> Placement:
        return way if way.sharding == "data_parallel" else replace(way, fast_rows=fast_rows)

    def _raised(self, plan: Plan, table: TableSpec, buffers: float) -> Plan:
        """With the fast rows that a placed table should have; fewer, or more, where one of the memories is short.
        ``buffers`` bytes of each device's fast memory are left to tables that are not yet placed."""
        way = plan.placements[table.name]
        others = {name: placement for name, placement in plan.placements.items() if name != table.name}
        fast, slow = self._free(self._empty(others))

        def at(fast_rows: int) -> Plan:
            return plan.placed(table.name, way.sharding, way.ranks, fast_rows)

        def spare(fast_rows: int) -> tuple[float, float]:
            for shard, cost in (found := self.problem.costs(table, at(fast_rows))):
                fast[shard.rank] -= cost.kept_bytes
                slow[shard.rank] -= cost.slow_bytes
            left = min(fast[shard.rank] for shard, _ in found), min(slow[shard.rank] for shard, _ in found)
            for shard, cost in found:
                fast[shard.rank] += cost.kept_bytes
                slow[shard.rank] += cost.slow_bytes
            return left

        if not self.problem.topology.slow_memory_bytes:
            return at(table.rows)
        least = bisect_left(range(table.rows), True, key=lambda rows: spare(rows)[1] >= 0)
        most = bisect_left(range(table.rows + 1), True, key=lambda rows: spare(rows)[0] < buffers) - 1
        return at(max(min(max(self.rows[table.name], least), most), 0))

    def _free(self, plan: Plan) -> tuple[list[float], list[float]]:
        """Bytes of fast and of slow memory that the placed tables leave on each device."""
        world = self.problem.topology.world_size
        fast, slow = [self.problem.capacity] * world, [float(self.problem.topology.slow_memory_bytes)] * world
        for table in self.problem.tables:
            if table.name in plan.placements:
                for shard, cost in self.problem.costs(table, plan):
                    fast[shard.rank] -= cost.kept_bytes
                    slow[shard.rank] -= cost.slow_bytes
        return fast, slow

    def _room(self, plan: Plan, fixed: Sequence[TableSpec], floating: Sequence[TableSpec]) -> Capacity:
        """Whole tables to be balanced: each needs its bytes in either memory."""
        fast, slow = self._free(plan)
        worst = min(fast)
        if worst < 0:
            rank = fast.index(worst)
            raise NoFeasiblePlan(
                f"device {rank} is {written_bytes(-worst)} of fast memory short for {_names(fixed) or 'its ids'} alone",
                "split what lies there over more devices, or give them more memory",
            )
        return Capacity(
            costs=[self._seconds(table, self.rows[table.name]) for table in floating],
            sizes=[self.problem.whole(table).kept_bytes for table in floating],
            capacities=self._every(fast, slow),
            names=[f"table {table.name!r}" for table in floating],
            before=device_seconds(self.problem, plan),
        )

    def _every(self, fast: Sequence[float], slow: Sequence[float]) -> list[float]:
        """Bytes of both memories of each device, but for a row that neither has room for."""
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

    def _even(self, plan: Plan, floating: Sequence[TableSpec], room: Capacity) -> Iterator[tuple[int, ...]]:
        """The tables balanced so that each device has fast memory for the rows that should be fast, but for some
        slack; where that can be, and all else has room too."""
        whole = Placement("table_wise", (0,))
        wanted = [self._costs(table, whole, self.rows[table.name])[0].kept_bytes for table in floating]
        fast, _ = self._free(plan)
        for slack in SLACKS:
            even = replace(room, sizes=wanted, capacities=[slack * each for each in fast])
            with contextlib.suppress(NoFeasiblePlan):
                bins = balanced(even).bins
                if room.fits(room.balance(bins)):
                    yield bins

    def _slowest(self, plan: Plan) -> float:
        return max(device_seconds(self.problem, plan))


def check_room(problem: Problem, plan: Plan) -> None:
    """Nothing, where each device has room for what ``plan`` puts on it.

    Raises:
        NoFeasiblePlan: one has not.
    """
    for load in predict(problem, plan).devices:
        if load.spare_bytes < 0 or load.slow_spare_bytes < 0:
            fast = load.spare_bytes < 0
            short, memory = (-load.spare_bytes, "fast") if fast else (-load.slow_spare_bytes, "slow")
            raise NoFeasiblePlan(f"device {load.rank} lacks {written_bytes(short)} of {memory} memory")


def _names(tables: Sequence[TableSpec], most: int = 3) -> str:
    """``tables 'a', 'b' and 4 more``; nothing of none."""
    shown = ", ".join(repr(table.name) for table in tables[:most])
    more = f" and {len(tables) - most} more" if len(tables) > most else ""
    return f"table{'s' if len(tables) > 1 else ''} {shown}{more}" if tables else ""
