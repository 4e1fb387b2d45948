"""The RecShard planner: runs a linear model and a greedy method, and returns the better plan.

Source: Sethi et al., RecShard, arXiv 2201.10095. Deviations: the cost of a step is ziggurat's own, which includes the
optimizer's traffic and the exchange between devices in addition to the reads (:mod:`~ziggurat.planning.cost`); tables
may be split; and the linear model only decides the devices of tables, its coarse steps of fast rows being replaced by
an exact computation afterwards.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import pydantic

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.progress import Progress
from ziggurat.core.tables import TableSpec
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.problem import Problem
from ziggurat.planning.recshard.filling import Filling
from ziggurat.planning.recshard.greedy import Greedy, check_capacity
from ziggurat.planning.recshard.linear_model import LinearModel, Option, Solution, solve
from ziggurat.planning.recshard.sharding_options import allowed_placements, required_placements
from ziggurat.planning.rules import device_seconds

GAP = 1e-3
"""Relative gap at which the linear model's solution counts as optimal; its steps and the cost model are no finer."""

MAX_OPTIONS = 100_000
"""The most options of a linear model; building a larger one would take too long."""

UNUSED_PARTS = 4
"""Number of steps in which the rows that are never looked up become fast, for a split table."""


class RecShard(Planner):
    """The RecShard planner; see the module's docstring."""

    class Config(PlannerSettings):
        """Hot rows in fast memory, cold rows in slow memory, tables placed so that the slowest device is fastest."""

        uses_slow_memory: ClassVar[bool] = True

        name: Literal["recshard"] = "recshard"

        steps: int = pydantic.Field(default=12, ge=1, le=100)
        """Number of fast-row counts that the linear model considers for a table. They are steps of the share of its
        look-ups, closer together towards all of them."""
        time_limit_s: float = pydantic.Field(default=10.0, ge=0)
        """The most seconds for solving the linear model; 0 leaves it out. A plan found at the limit depends on the
        speed of the machine."""

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> RecShard:
            del time_parts, progress
            return RecShard(self)

    uses_slow_memory: ClassVar[bool] = True

    def __init__(self, config: Config) -> None:
        self.config = config

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`."""
        if not problem.tables:
            return Plan(problem.topology.world_size, {}, problem.topology.devices)
        context = _PlanningContext(problem)
        greedy: Plan | NoFeasiblePlan
        try:
            greedy = context.greedy.plan()
        except NoFeasiblePlan as error:
            greedy = error
        solved, message = self._solved(context)
        plan = _better(problem, solved, None if isinstance(greedy, NoFeasiblePlan) else greedy)
        if plan is None:
            assert isinstance(greedy, NoFeasiblePlan)
            raise greedy
        whose = "the linear model's" if plan is solved else "the greedy method's"
        return replace(plan, notes=(f"recshard: {whose} plan; {message}", *context.notes))

    @property
    def feasibility_planner(self) -> GreedyRecShard:
        """The greedy method alone, which says sooner whether there is a plan."""
        return GreedyRecShard()

    def _solved(self, context: _PlanningContext) -> tuple[Plan | None, str]:
        """Returns the linear model's plan with exact fast rows, or None, and a message on the solution."""
        limit = self.config.time_limit_s
        if not limit:
            return None, "no linear model (time_limit_s: 0)"
        if context.problem.topology.world_size == 1:
            return None, "no linear model: on one device, what is hottest is fast"
        count = context.count(self.config.steps)
        if count > MAX_OPTIONS:
            return None, f"no linear model: {count:,} options are more than {MAX_OPTIONS:,}; give fewer steps"
        placements, model = context.model(self.config.steps)
        solution = solve(model, limit, GAP)
        if isinstance(solution, str):
            return None, f"the linear model of {count:,} options {solution}"
        chosen = [options[number] for options, number in zip(placements, solution.choice, strict=True)]
        names = [table.name for table in context.problem.tables]
        return context.greedy.improved_from(dict(zip(names, chosen, strict=True))), _describe(solution, count, limit)


class GreedyRecShard(Planner):
    """RecShard's greedy method without moves and swaps."""

    uses_slow_memory: ClassVar[bool] = True

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`."""
        if not problem.tables:
            return Plan(problem.topology.world_size, {}, problem.topology.devices)
        return _PlanningContext(problem).greedy.plan(improve=False)


class _PlanningContext:
    """A problem with the quantities that both methods need."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.filling = problem, Filling(problem)
        required = {table.name: required_placements(problem, table) for table in problem.tables}
        copies = {
            name: len(options[0].ranks) for name, options in required.items() if options and _replicates(options[0])
        }
        self.rows = self.filling.pooled_fast_rows(copies)
        seconds = {table.name: self._seconds(table) for table in problem.tables if not required[table.name]}
        even = sum(seconds.values()) / problem.topology.world_size
        self.candidates = {
            table.name: required[table.name] or allowed_placements(problem, table, seconds[table.name] > even)
            for table in problem.tables
        }
        self.greedy = Greedy(problem, self.filling, self.candidates, self.rows)

    @property
    def notes(self) -> list[str]:
        notes: list[str] = []
        if not self.problem.topology.slow_memory_bytes:
            notes.append("no slow memory (planning.topology.slow_memory): every row is fast")
        elif self.problem.statistics is None:
            notes.append("without statistics no row is known to be hotter than another: the first ids are fast")
        return notes

    def count(self, steps: int) -> int:
        """Returns an upper bound on the number of options of the linear model."""
        return sum(len(options) * (steps + 1 + UNUSED_PARTS) for options in self.candidates.values())

    def model(self, steps: int) -> tuple[list[list[Placement]], LinearModel]:
        """Returns the placements of each table, one for each option, and the linear model of them."""
        problem = self.problem
        placements = [
            [each for placement in self.candidates[table.name] for each in self._with_rows(table, placement, steps)]
            for table in problem.tables
        ]
        tables = [
            [self._option(table, placement) for placement in options]
            for table, options in zip(problem.tables, placements, strict=True)
        ]
        slow = float(problem.topology.slow_memory_bytes)
        return placements, LinearModel(tables, problem.topology.world_size, max(problem.capacity, 0.0), slow)

    def _with_rows(self, table: TableSpec, placement: Placement, steps: int) -> list[Placement]:
        if _replicates(placement):
            return [placement]
        return [replace(placement, fast_rows=rows) for rows in self._fast_rows(table, placement, steps)]

    def _fast_rows(self, table: TableSpec, placement: Placement, steps: int) -> list[int]:
        """Returns the numbers of fast rows to consider for a table.

        They are the fewest rows that get a share 1 − (1 − i/steps)³ of the look-ups. These shares are dense near 1,
        where the look-ups left to slow memory cost most. For a split table, steps of its unused rows are added.
        """
        if not self.problem.topology.slow_memory_bytes:
            return [table.rows]
        curve = self.problem.curve(table)
        found = {0, *(curve.least_rows(1 - (1 - step / steps) ** 3) for step in range(1, steps + 1))}
        if len(placement.ranks) > 1:
            unused = table.rows - max(found)
            found |= {table.rows - unused * part // UNUSED_PARTS for part in range(UNUSED_PARTS)}
        return sorted(found)

    def _option(self, table: TableSpec, placement: Placement) -> Option:
        plan = Plan(self.problem.topology.world_size, {table.name: placement}, self.problem.topology.devices)
        costs = self.problem.costs(table, plan)
        split = len(placement.ranks) > 1
        return Option(
            devices=tuple(shard.rank for shard, _ in costs),
            fast=tuple(float(cost.kept_bytes) for _, cost in costs),
            slow=tuple(float(cost.slow_bytes) if split else 0.0 for _, cost in costs),
            total=tuple(float(cost.kept_bytes + cost.slow_bytes) for _, cost in costs),
            seconds=tuple(cost.seconds for _, cost in costs),
        )

    def _seconds(self, table: TableSpec) -> float:
        plan = Plan(1, {table.name: Placement("table_wise", (0,), self.rows[table.name])}, 1)
        return self.problem.costs(table, plan)[0][1].seconds


def _replicates(placement: Placement) -> bool:
    return placement.sharding == "data_parallel"


def _describe(solution: Solution, count: int, limit: float) -> str:
    if solution.proved:
        return f"the linear model of {count:,} options was solved, its gap {solution.gap:.2%}"
    return f"the linear model of {count:,} options was stopped after {limit:g} s with a gap of {solution.gap:.2%}"


def _better(problem: Problem, solved: Plan | None, greedy: Plan | None) -> Plan | None:
    """Returns the feasible plan whose slowest device is faster, then with the lower sum, then the solved one."""
    found = [plan for plan in (solved, greedy) if plan is not None and _fits(problem, plan)]

    def merit(plan: Plan) -> tuple[float, float]:
        loads = device_seconds(problem, plan)
        return max(loads), sum(loads)

    return min(found, key=merit, default=None)


def _fits(problem: Problem, plan: Plan) -> bool:
    try:
        check_capacity(problem, plan)
    except NoFeasiblePlan:
        return False
    return True
