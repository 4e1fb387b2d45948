"""Compares the plans of several planners for the same tables and devices by the same costs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.parts import built_in
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.topology import Topology
from ziggurat.planning.autoshard.costs import LearnedCosts, exchange_seconds
from ziggurat.planning.autoshard.learned import learned_costs
from ziggurat.planning.config import PlannerConfig
from ziggurat.planning.contract import PlannerSettings, TimeParts
from ziggurat.planning.flexshard.flexshard import fastest_tiers, may_have_tiers
from ziggurat.planning.placement import shard_costs, split_options
from ziggurat.planning.plan_estimate import PlanEstimate
from ziggurat.planning.planner import plan_problem, planned_by
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import REPLICATED, WHOLE, Rules


@dataclass(frozen=True, slots=True)
class Compared:
    """One planner's entry in a comparison.

    Attributes:
        name: name of the planner.
        planned: its plan; None if it found none.
        refused: the reason why it found none; else empty.
        seconds: seconds of a step on each device, by the costs of the comparison; empty without a plan.
        planning_s: seconds that planning took.
    """

    name: str
    planned: PlanEstimate | None
    refused: str
    seconds: tuple[float, ...]
    planning_s: float

    @property
    def slowest(self) -> float:
        """Seconds of the slowest device, which all others wait for; infinite without a plan."""
        return max(self.seconds, default=float("inf"))

    @property
    def imbalance(self) -> float:
        """Seconds of the slowest device divided by the mean."""
        mean = sum(self.seconds) / len(self.seconds)
        return self.slowest / mean if mean else 1.0

    def to_json(self) -> dict[str, Any]:
        found = None if self.planned is None else self.planned.plan.to_json()
        return {
            "name": self.name,
            "plan": found,
            "refused": self.refused,
            "device_seconds": list(self.seconds),
            "planning_seconds": self.planning_s,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison.

    Attributes:
        judge: the source of the costs that all plans are evaluated by.
        even_share: seconds of each device if all shared the tables' least cost evenly.
        proven: whether ``even_share`` is a lower bound for every plan's slowest device. It is not one by the cost
            network, whose costs are not additive.
        entries: the configured planner's entry, then those of the others.
    """

    judge: str
    even_share: float
    proven: bool
    entries: tuple[Compared, ...]

    @property
    def planned(self) -> PlanEstimate:
        """The configured planner's plan."""
        planned = self.entries[0].planned
        assert planned is not None
        return planned

    def to_json(self) -> dict[str, Any]:
        return {
            "judge": self.judge,
            "even_share": self.even_share,
            "proven": self.proven,
            "planners": [entry.to_json() for entry in self.entries],
        }


def compare_planners(
    problem: Problem,
    configured: PlannerSettings,
    progress: Progress | None = None,
    time_parts: TimeParts | None = None,
    measured: Path | None = None,
) -> Comparison:
    """Plans the same tables and devices with every planner.

    Plans are evaluated by the cost network if there is one for such devices, they have no slow memory, and the
    configured planner places no rows in tiers, neither of which it models; else by the cost model. A planner that finds
    no plan has an entry with its reason.

    Args:
        problem: tables and devices.
        configured: the planner that comes first; its learned costs, if it names any, evaluate all plans.
        progress: shows the progress.
        time_parts: measures shards, for the configured planner if it measures its plans.
        measured: folder of the learned costs to use if the configured planner names none; default: those shipped with
            ziggurat.

    Raises:
        ConfigError: the configured planner cannot plan for such devices.
        NoFeasiblePlan: the configured planner finds no plan; the message says which changes would suffice.
    """
    progress = progress or Silent()
    learned = configured.learned_folder or measured
    costs = None if configured.uses_row_tiers else _costs(learned, problem.topology)
    planners = _planners(configured, learned, problem.topology, costs)
    progress.start("plan", len(planners), "planners")
    entries: list[Compared] = []
    for number, (name, config) in enumerate(planners.items()):
        planner, started = config.build_checked(time_parts, progress), time.perf_counter()
        try:
            planned = planned_by(problem, planner) if number else plan_problem(problem, planner)
        except NoFeasiblePlan as error:
            if not number:
                raise
            entries.append(Compared(name, None, error.problem, (), time.perf_counter() - started))
        else:
            taken = time.perf_counter() - started
            entries.append(Compared(name, planned, "", _seconds(problem, planned, costs), taken))
        progress.advance(number + 1, planner=name)
    progress.finish()
    judge = "the cost model" if costs is None else costs.source
    return Comparison(judge, _even_share(problem, costs), costs is None, tuple(entries))


def _costs(learned: Path | None, topology: Topology) -> LearnedCosts | None:
    costs = learned_costs(learned)
    return None if topology.slow_memory_bytes or costs.network.origin["kind"] != topology.kind else costs


def _planners(
    configured: PlannerSettings, learned: Path | None, topology: Topology, costs: LearnedCosts | None
) -> dict[str, PlannerSettings]:
    """Returns the configured planner, then every other one that can plan for such devices by such costs."""
    variants = [each for kind in built_in(PlannerConfig, PlannerSettings) for each in kind.variants()]
    able = [
        each.with_learned(learned)
        for each in variants
        if (topology.slow_memory_bytes or not each.uses_slow_memory)
        and (costs or not each.needs_learned_costs)
        and not (costs and each.uses_row_tiers)
    ]
    return {each.label: each for each in (configured, *able, configured)}


def _seconds(problem: Problem, planned: PlanEstimate, costs: LearnedCosts | None) -> tuple[float, ...]:
    if costs is None:
        return tuple(device.seconds for device in planned.devices)
    return tuple(costs.device_seconds(problem, planned.plan))


def _even_share(problem: Problem, costs: LearnedCosts | None) -> float:
    """Returns a device's even share of the total cost if each table has its cheapest split.

    By learned costs, the kernels' part is that of all tables together on one device; only the exchanges depend on the
    split.
    """
    if not problem.tables:
        return 0.0
    required = Rules(Rules.Config()).unsplit(problem)
    least = 0.0 if costs is None else costs.seconds_on_one_device(problem)
    for table in problem.tables:
        split = required[table.name]
        options = [split] if split != WHOLE else [WHOLE, REPLICATED, *split_options(problem, table, fused=False)]
        each = [shard_costs(problem, table, option) for option in options]
        if costs is None and may_have_tiers(problem, table):
            each.append(fastest_tiers(problem, table))
        measure = (lambda cost: cost.seconds) if costs is None else (lambda cost: exchange_seconds(problem, cost))
        least += min(sum(map(measure, shards)) for shards in each)
    return least / problem.topology.world_size
