"""A planner: whole tables, the most expensive first, each on the device that has the least to do so far."""

from __future__ import annotations

from ziggurat import NoFeasiblePlan
from ziggurat.extension import Placement, Plan, Planner, PlannerSettings, Problem, TimeParts


class LargestFirst(Planner):
    """Places each table whole, unless the user asks for another sharding, and refuses what memory cannot hold."""

    class Config(PlannerSettings):
        """It has no settings."""

        def build(self, time_parts: TimeParts | None = None, progress: object = None) -> LargestFirst:
            del time_parts, progress  # for planners that measure
            return LargestFirst()

    def plan(self, problem: Problem) -> Plan:
        devices = range(problem.topology.world_size)
        seconds, held = [0.0 for _ in devices], [0 for _ in devices]
        plan = Plan(problem.topology.world_size, {}, problem.topology.devices)
        for table in sorted(problem.tables, key=lambda table: (-problem.whole(table).seconds, table.name)):
            least = min(devices, key=lambda device: (seconds[device], device))
            placement = Placement("table_wise", (least,))
            if (asked := problem.constraints.get(table.name)) is not None:
                host = problem.topology.ranks_of(problem.topology.host(least))
                free = {"table_wise": (least,), "table_row_wise": host}.get(asked.sharding, tuple(devices))
                placement = Placement(asked.sharding, asked.ranks or free)
            plan = plan.placed(table.name, placement.sharding, placement.ranks)
            for shard, cost in problem.costs(table, plan):
                seconds[shard.rank] += cost.seconds
                held[shard.rank] += cost.kept_bytes
                if held[shard.rank] > problem.capacity:
                    raise NoFeasiblePlan(f"table {table.name!r} does not fit on device {shard.rank}")
        return plan
