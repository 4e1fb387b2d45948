"""Makes a validated plan with its prediction from tables and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ziggurat.core.errors import ConfigError, NoFeasiblePlan, within
from ziggurat.core.parts import built_in
from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.advice import advice, least_memory, least_slow_memory, with_memory
from ziggurat.planning.config import PlannerConfig, PlanningConfig
from ziggurat.planning.constraints import check_plan
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.offload import with_memory_for_rows_only
from ziggurat.planning.packing import may_fit
from ziggurat.planning.plan_estimate import PlanEstimate, predict
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import format_bytes


def plan_tables(
    tables: Sequence[TableSpec],
    statistics: DatasetStatistics | None,
    topology: Topology,
    config: PlanningConfig,
    batch_size: int,
    time_parts: TimeParts | None = None,
    progress: Progress | None = None,
) -> PlanEstimate:
    """Makes a plan for ``tables`` on ``topology``, with the bytes and seconds that it is predicted to take.

    The same arguments give the same plan, unless the planner measures. Measured bandwidths vary between measurements,
    so one rank should plan and send the plan to the others.

    Args:
        tables: the model's tables.
        statistics: statistics of the training rows; None if there are none, and then all rows are assumed to be looked
            up equally often.
        topology: hosts and devices; each device is a rank.
        config: the ``planning`` section.
        batch_size: examples per rank and step.
        time_parts, progress: see :meth:`~ziggurat.planning.contract.PlannerSettings.build`.

    Raises:
        ConfigError: ``planning.tables`` asks for an impossible placement; the message names the key.
        NoFeasiblePlan: the devices lack memory; the message says which changes would suffice.
    """
    planner = config.planner.build_checked(time_parts, progress)
    return plan_problem(problem_of(tables, statistics, topology, config, batch_size), planner)


def plan_problem(problem: Problem, planner: Planner) -> PlanEstimate:
    """Returns the planner's plan with its prediction.

    Raises:
        NoFeasiblePlan: the devices lack memory; the message says which changes would suffice.
    """
    try:
        return planned_by(problem, planner)
    except NoFeasiblePlan as error:
        quick = planner.feasibility_planner
        fits = lambda other: _fits(other, quick)  # noqa: E731
        memory = least_memory(problem, fits)
        fault = error.problem if memory is None else _lacking(problem, quick, memory)
        others = [*_slow_ways(problem, planner, fits), *_planner_that_fits(problem, planner)]
        raise NoFeasiblePlan(fault, advice(problem, memory, fits, others)) from None


def problem_of(
    tables: Sequence[TableSpec],
    statistics: DatasetStatistics | None,
    topology: Topology,
    config: PlanningConfig,
    batch_size: int,
) -> Problem:
    """Returns the problem that a planner solves; for the arguments see :func:`plan_tables`.

    Raises:
        ConfigError: ``planning.tables`` asks for an impossible placement; the message names the key.
    """
    with within("planning"):
        constraints = config.constraints(tables, topology)
    offloads_rows = config.beyond_memory is not None
    problem = Problem(tuple(tables), topology, statistics, batch_size, constraints, config.reserve, offloads_rows)
    if config.beyond_memory is not None:
        problem = problem.but(memory_for_rows=float(config.beyond_memory.memory))
    return with_memory_for_rows_only(problem) if config.beyond_memory and topology.slow_memory_bytes else problem


def planned_by(problem: Problem, planner: Planner) -> PlanEstimate:
    """Returns the planner's plan, validated, with its prediction.

    Raises:
        NoFeasiblePlan: the devices lack memory, according to the planner or to the cost model.
    """
    plan = planner.plan(problem)
    _check(problem, plan)
    planned = predict(problem, plan)
    least = min(planned.devices, key=lambda device: device.spare_bytes)
    if least.spare_bytes < 0:
        largest = max(
            (placed for placed in planned.shards if placed.shard.rank == least.rank),
            key=lambda placed: placed.cost.kept_bytes,
            default=None,
        )
        most = f"; most of it is table {largest.table!r}" if largest else ""
        raise NoFeasiblePlan(f"device {least.rank} lacks {format_bytes(-least.spare_bytes)}{most}")
    for device in planned.devices:
        if device.slow_spare_bytes < 0:
            raise NoFeasiblePlan(f"device {device.rank} lacks {format_bytes(-device.slow_spare_bytes)} of slow memory")
    return planned


def _lacking(problem: Problem, planner: Planner, memory: int) -> str:
    """Returns a message with the devices' memory, the least that a plan was found for, and what that plan's fullest
    device needs it for.

    The planner's own message is not used: it describes the last plan that was tried, which need not be the one that
    lacks least.
    """
    planned = planned_by(with_memory(problem, memory), planner)
    fullest = min(planned.devices, key=lambda device: device.spare_bytes)
    here = [placed for placed in planned.shards if placed.shard.rank == fullest.rank]
    has = problem.topology.memory_bytes
    parts = [f"{format_bytes(problem.client_bytes)} for the ids and vectors of its {problem.batch_size:,} examples"]
    if problem.reserve:
        parts.insert(0, f"{format_bytes(problem.reserve * memory)} of reserve (planning.reserve)")
    most = ""
    if here:
        largest = max(here, key=lambda placed: placed.cost.kept_bytes)
        parts.append(f"{format_bytes(sum(placed.cost.kept_bytes for placed in here))} for tables")
        sharding = planned.plan.placements[largest.table].sharding
        most = f", most of it {format_bytes(largest.cost.kept_bytes)} for table {largest.table!r}, {sharding}"
    slow = problem.topology.slow_memory_bytes
    beside = f" beside {format_bytes(slow)} of slow memory" if slow and planner.uses_slow_memory else ""
    return (
        f"{format_bytes(has)} of memory a device{beside} is {format_bytes(memory - has)} short: the least that a "
        f"plan was found for is {format_bytes(memory)}; device {fullest.rank} then has {', '.join(parts)}{most}"
    )


def _slow_ways(problem: Problem, planner: Planner, fits: Callable[[Problem], bool]) -> list[str]:
    """Returns sufficient changes that concern slow memory: more of it, or a planner that uses the present one."""
    if not planner.uses_slow_memory:
        if not problem.topology.slow_memory_bytes:
            return []
        others = [
            each
            for kind in built_in(PlannerConfig, PlannerSettings)
            for each in kind.variants()
            if each.uses_slow_memory
        ]
        fitting = [other.title for other in others if _fits(problem, other.build().feasibility_planner)]
        return [f"planning.planner: {{name: {name}}}, which uses the slow memory" for name in fitting]
    memory = least_slow_memory(problem, fits)
    now = format_bytes(problem.topology.slow_memory_bytes) if problem.topology.slow_memory_bytes else "none"
    return [] if memory is None else [f"planning.topology.slow_memory: {format_bytes(memory)} (now {now})"]


def _planner_that_fits(problem: Problem, planner: Planner) -> Iterator[str]:
    """Yields the first other planner that finds a plan for the same devices without slow memory, if there is one.

    The planners are asked only if all tables together might fit, because they take seconds.
    """
    if problem.topology.slow_memory_bytes or not may_fit(problem):
        return
    for kind in built_in(PlannerConfig, PlannerSettings):
        config: PlannerSettings = kind()  # pyright: ignore[reportAbstractUsage]  (each member builds)
        other = config.build() if not config.needs_learned_costs else planner
        if type(other) is not type(planner) and _fits(problem, other):
            yield f"planning.planner: {{name: {config.title}}}, whose plan fits"
            return


def _check(problem: Problem, plan: Plan) -> None:
    """Asserts that the planner's plan is possible and keeps to the user's constraints; a violation is a bug of ours."""
    check_plan(plan, problem.tables, problem.topology)
    for name, constraint in problem.constraints.items():
        placement = plan.placements[name]
        assert placement.sharding == constraint.sharding, (name, placement, constraint)
        assert constraint.ranks in (None, placement.ranks), (name, placement, constraint)


def _fits(problem: Problem, planner: Planner) -> bool:
    try:
        planned_by(problem, planner)
    except (NoFeasiblePlan, ConfigError):
        return False
    return True
