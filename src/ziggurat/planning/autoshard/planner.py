"""A planner with measured costs and a learned placement policy.

1. Rules decide which tables are replicated (:mod:`~ziggurat.planning.rules`).
2. A beam search splits the costliest and the largest tables as long as that makes the slowest device faster. It starts
   from the rules' splits, and again from whole tables. NeuroShard (arXiv 2305.01868, section 4.2) halves columns; ours
   also splits by rows, which every optimizer's kernel supports.
3. A trained policy, or several (:mod:`~ziggurat.planning.autoshard.proposers`), places the remaining items on devices;
   the best of several drawn placements is improved by swaps.
4. On request, the plan is measured, the costs are corrected, and the planner plans again
   (:mod:`~ziggurat.planning.autoshard.refinement`).

The cost of a device is the cost network's prediction for all shards that it holds together, plus the exchanges with
other devices by the cost model. The plans of the rules and of the baselines, which place whole tables, are candidates
as well, so by these costs the plan is never worse than theirs. The best candidate is improved by swaps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self, get_args

import numpy as np
import pydantic

from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.tables import TableSpec
from ziggurat.planning.autoshard.baseline import BaselinePlanner, Measure
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.learned import learned_costs, learned_policies
from ziggurat.planning.autoshard.policy import Policy
from ziggurat.planning.autoshard.proposers import proposals
from ziggurat.planning.autoshard.refinement import refine_plan
from ziggurat.planning.autoshard.task import Ints, Task, greedy, improved_by_swaps
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.placement import Item, Loads, TableSplit, place_tables, split_options
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import Bytes
from ziggurat.planning.rules import REPLICATED, WHOLE, Rules

TABLES_TO_SPLIT = 4
"""Number of the costliest tables, and of the largest, that each state of the beam tries to split."""
MAX_REMAINING_TIME = 0.998
"""A split must reduce the slowest device's time to at most this share of it; otherwise the search ends."""


class AutoShard(Planner):
    """The learned planner; the module's docstring describes it.

    Args:
        config: the settings.
        costs: the learned costs.
        policies: the placement policies that propose, one or more.
        time_parts: measures a device's shards, if the config asks for measurements.
        progress: shows the progress of the measurements.
    """

    class Config(PlannerSettings):
        """A planner that has learned the costs of sets of tables, and where to place tables."""

        can_be_trained: ClassVar[bool] = True

        name: Literal["autoshard"] = "autoshard"

        replicate_up_to: Bytes = 16 * 2**20
        """The most bytes of weights that a replicated table may have."""
        fused: bool = True
        """Use only splits that FBGEMM's kernels support; tables of row-wise Adagrad are then never split by columns."""
        learned: Path | None = None
        """Folder with a cost network and a policy of your own (`ziggurat doctor --measure`); default: those shipped
        with ziggurat."""
        rollouts: int = pydantic.Field(default=32, ge=0)
        """Number of placements drawn from the policies, in addition to the likeliest one of each."""
        proposers: int = pydantic.Field(default=1, ge=1, le=8)
        """Number of policies that propose. More than one are snapshots of one training in cycles; they are trained with
        `ziggurat plan --train` and kept in the folder ``learned``. 1: the last policy."""
        beam: int = pydantic.Field(default=3, ge=1)
        """Number of states that the search over splits keeps."""
        depth: int = pydantic.Field(default=10, ge=0)
        """The most splits that the search makes one after the other."""
        refine_s: float = pydantic.Field(default=0, ge=0)
        """Seconds for measuring plans on this machine and planning again with corrected costs; 0: no measurements. A
        plan whose measurement has started is finished. The same problem need not give the same plan."""

        @property
        def needs_learned_costs(self) -> bool:
            return True

        @property
        def learned_folder(self) -> Path | None:
            return self.learned

        def with_learned(self, folder: Path | None) -> Self:
            return self.model_copy(update={"learned": folder})

        @property
        def measures_plans(self) -> bool:
            return self.refine_s > 0

        def without_measuring(self) -> Self:
            return self.model_copy(update={"refine_s": 0.0})

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> AutoShard:
            costs, policies = learned_costs(self.learned), learned_policies(self.learned, self.proposers)
            return AutoShard(self, costs, policies, time_parts, progress)

    def __init__(
        self,
        config: Config,
        costs: LearnedCosts,
        policies: Sequence[Policy],
        time_parts: TimeParts | None = None,
        progress: Progress | None = None,
    ) -> None:
        assert policies
        self.config, self.costs, self.policies, self.time_parts = config, costs, tuple(policies), time_parts
        self.progress = progress or Silent()
        self.rules = Rules(Rules.Config(replicate_up_to=config.replicate_up_to, fused=config.fused))

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`.

        Raises:
            ConfigError: the learned costs are of another kind of device, or measurements are requested but impossible.
        """
        self.costs.check_kind(problem.topology.kind)
        if not self.config.refine_s:
            return self._plan(problem)
        if self.time_parts is None:
            raise ConfigError(
                f"planning.planner.refine_s: {self.config.refine_s:g}, and only this machine can be measured",
                "leave refine_s out, or plan for planning.topology.device: local",
            )

        def plan_by(costs: LearnedCosts, start: Plan | None) -> Plan:
            planner = AutoShard(self.config, costs, self.policies)
            return planner._improved_by_swaps(problem, start) if start else planner._plan(problem)

        others, seconds = self._other_plans(problem), self.config.refine_s
        return refine_plan(problem, plan_by, others, self.costs, self.time_parts, seconds, self.progress)

    def _other_plans(self, problem: Problem) -> list[Plan]:
        """Returns the plans of the rules, and of the baselines that find a plan."""
        found = [replace(self.rules.plan(problem), notes=("autoshard: the rules' plan",))]
        for by in get_args(Measure):
            rule = BaselinePlanner.Config(by=by)
            with contextlib.suppress(NoFeasiblePlan):
                plan = BaselinePlanner(rule, self.costs if rule.needs_learned_costs else None).plan(problem)
                found.append(replace(plan, notes=(f"autoshard: whole tables by {by}",)))
        return found

    def _plan(self, problem: Problem) -> Plan:
        """Returns the best plan by the present costs."""
        found = self._other_plans(problem)
        place = lambda splits: place_tables(problem, self._split(problem, splits), self._assign)  # noqa: E731
        for start in self._starts(problem):
            with contextlib.suppress(NoFeasiblePlan):
                plan = self.rules.place_within_memory(problem, start, place)
                found.append(replace(plan, notes=("autoshard: a plan of its own",)))
        slowest = lambda plan: max(self.costs.device_seconds(problem, plan))  # noqa: E731
        best = min(found, key=slowest)
        swapped = self._improved_by_swaps(problem, best)
        if slowest(swapped) < slowest(best):
            best = replace(swapped, notes=(f"{best.notes[0]}, after swaps",))
        return replace(best, notes=(f"{best.notes[0]}; {self.costs.source}",))

    def _improved_by_swaps(self, problem: Problem, original: Plan) -> Plan:
        """Returns ``original`` improved by swaps of whole tables and of column ranges."""

        def assign(problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
            ranks = {item.table.name: iter(original.placements[item.table.name].ranks) for item in items}
            start = np.array([next(ranks[item.table.name]) for item in items], np.int64)
            return improved_by_swaps(self.costs.task(problem, plan, items, loads), start).tolist() if items else ()

        splits = {
            name: _split_of(placement, name in problem.constraints) for name, placement in original.placements.items()
        }
        return replace(place_tables(problem, splits, assign), notes=original.notes)

    @property
    def feasibility_planner(self) -> Rules:
        """The rules, which say sooner whether there is a plan: this planner finds one whenever they do."""
        return self.rules

    def _assign(self, problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
        """Assigns items to ranks by the policies and swaps."""
        if not items:
            return ()
        task = self.costs.task(problem, plan, items, loads)
        rng = np.random.default_rng(0)
        candidates = [greedy(task), greedy(task, task.bytes_N)]
        candidates += proposals(self.policies, task, self.config.rollouts, rng)
        found = _best_fitting(task, candidates)
        if found is None:
            raise _no_capacity_error(items, loads)
        return found.tolist()

    def _starts(self, problem: Problem) -> list[dict[str, TableSplit]]:
        """Returns the initial splits: those of the rules, and whole tables; both replicate the same tables."""
        by_rules, whole = self.rules.initial_splits(problem), self.rules.unsplit(problem)
        whole |= {name: split for name, split in by_rules.items() if split == REPLICATED}
        return [by_rules] if by_rules == whole else [by_rules, whole]

    def _split(self, problem: Problem, splits: Mapping[str, TableSplit]) -> dict[str, TableSplit]:
        """Returns ``splits`` with further tables split where that helps, by beam search over greedy placements."""
        start = dict(splits)
        if not self._split_moves(problem, start):
            return start
        best = beam = [(self._greedy_seconds(problem, start), start)]
        for _ in range(self.config.depth):
            tried: dict[tuple[tuple[str, TableSplit], ...], tuple[float, dict[str, TableSplit]]] = {}
            for _, state in beam:
                for name, split in self._split_moves(problem, state):
                    candidate = {**state, name: split}
                    key = tuple(sorted(candidate.items(), key=lambda each: each[0]))
                    if key not in tried:
                        tried[key] = (self._greedy_seconds(problem, candidate), candidate)
            beam = sorted(tried.values(), key=lambda each: each[0])[: self.config.beam]
            if not beam or beam[0][0] > best[0][0] * MAX_REMAINING_TIME:
                break
            best = beam
        return best[0][1]

    def _split_moves(self, problem: Problem, state: Mapping[str, TableSplit]) -> list[tuple[str, TableSplit]]:
        """Returns (table, split) for the further splits of the costliest and of the largest tables."""
        parts = {table.name: self._further_splits(problem, table, state[table.name]) for table in problem.tables}
        tables = [table for table in problem.tables if parts[table.name]]
        seconds_per_part = {
            table.name: self.costs.table_seconds(problem, table) / state[table.name].parts for table in tables
        }
        size = {table.name: table.weight_bytes / state[table.name].parts for table in tables}
        chosen = {
            table.name: None
            for measure in (seconds_per_part, size)
            for table in sorted(tables, key=lambda table: -measure[table.name])[:TABLES_TO_SPLIT]
        }
        return [(name, split) for name in chosen for split in parts[name]]

    def _further_splits(self, problem: Problem, table: TableSpec, split: TableSplit) -> list[TableSplit]:
        """Returns the further splits of a table: twice as many column ranges, or for a whole table any split by rows.

        There are none for tables whose split the user or the rules have decided.
        """
        if table.name in problem.constraints or split.sharding not in ("table_wise", "column_wise"):
            return []
        options = split_options(problem, table, self.config.fused)
        by_rows = [option for option in options if option.sharding != "column_wise"] if split == WHOLE else []
        return [option for option in options if option == TableSplit("column_wise", 2 * split.parts)] + by_rows

    def _greedy_seconds(self, problem: Problem, splits: Mapping[str, TableSplit]) -> float:
        """Returns the seconds of the slowest device under greedy assignment; infinite if that does not fit."""

        def assign(problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
            if not items:
                return ()
            task = self.costs.task(problem, plan, items, loads)
            found = greedy(task)
            if task.overflow(found):
                raise _no_capacity_error(items, loads)
            return found.tolist()

        try:
            return max(self.costs.device_seconds(problem, place_tables(problem, splits, assign)))
        except NoFeasiblePlan:
            return float("inf")


def _best_fitting(task: Task, candidates: Sequence[Ints], improved: int = 3) -> Ints | None:
    """Returns the best candidate that fits into memory, after swaps, or None if none fits.

    Swaps are tried in the first fitting candidate and in the ``improved`` best others.
    """
    legal = [device_N for device_N in candidates if not task.overflow(device_N)]
    starts = legal[:1] + sorted(legal[1:], key=task.seconds)[:improved]
    return min((improved_by_swaps(task, device_N) for device_N in starts), key=task.seconds, default=None)


def _split_of(placement: Placement, settled: bool) -> TableSplit:
    """Returns the split of a placed table.

    It includes the ranks if these are ``settled``, or if swaps do not move tables with such a split.
    """
    parts = len(placement.ranks) if placement.sharding == "column_wise" else 1
    moves = placement.sharding in ("table_wise", "column_wise") and not settled
    return TableSplit(placement.sharding, parts, None if moves else placement.ranks)


def _no_capacity_error(items: Sequence[Item], loads: Loads) -> NoFeasiblePlan:
    total, available = sum(item.cost.kept_bytes for item in items), sum(loads.free)
    largest = max(items, key=lambda item: item.cost.kept_bytes)
    return NoFeasiblePlan(
        f"{len(items)} tables and ranges of columns need {total:,.0f} bytes, the devices have {available:,.0f} left, "
        f"and no placement was found that fits; the largest is {largest.name} with {largest.cost.kept_bytes:,} bytes",
        "split tables by rows, or give more devices or more memory",
    )
