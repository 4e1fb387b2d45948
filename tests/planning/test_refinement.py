"""Refinement of plans by measurements: it recovers the tables' factors and never returns a worse plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from ziggurat.core.errors import ConfigError
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.autoshard.baseline import BaselinePlanner, Measure
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.learned import learned_costs, learned_policy
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.autoshard.pool import statistics, table_pool
from ziggurat.planning.autoshard.refinement import Parts, TimeParts, device_parts, refine_plan, table_factors
from ziggurat.planning.comparison import compare_planners
from ziggurat.planning.planner import planned_by
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import Rules

TABLES = table_pool(tables=30, spread=0.5)
COSTS = learned_costs(None)


def problem() -> Problem:
    specs = tuple(table.spec("adagrad") for table in TABLES)
    return Problem(specs, Topology(1, 3, "cpu", "cpu", 10**12, 1e10, 1e15, 1e15), statistics(TABLES), 300, reserve=0)


def true_factors() -> dict[str, float]:
    """Returns the factors by which each table's true time differs from the prediction."""
    return dict(zip((t.name for t in TABLES), np.random.default_rng(4).uniform(0.6, 1.6, len(TABLES)), strict=True))


class Clock:
    """Simulates measurements: the network's predictions with the given factors of tables."""

    def __init__(self, factors: Mapping[str, float]) -> None:
        self.costs, self.calls = COSTS.corrected(factors), list[frozenset[str]]()

    def __call__(self, problem: Problem, parts: Parts) -> float:
        self.calls.append(frozenset(f"{table.name} {shard.rows} {shard.columns}" for table, shard in parts))
        return self.costs.parts_seconds(problem, parts)[0]


def planner(
    seconds: float, time_parts: TimeParts | None, costs: LearnedCosts = COSTS, replicate_up_to: int = 1
) -> AutoShard:
    config = AutoShard.Config(refine_s=seconds, rollouts=2, depth=2, replicate_up_to=replicate_up_to)
    return AutoShard(config, costs, [learned_policy(None)], time_parts)


def test_table_factors_are_recovered_from_measured_sets() -> None:
    given, clock = problem(), Clock(true_factors())
    sets: list[tuple[Parts, float]] = []
    for seed in range(30):
        plan = BaselinePlanner(BaselinePlanner.Config(by="random", seed=seed), None).plan(given)
        sets += [(parts, clock(given, parts)) for parts in device_parts(given, plan)]
    found = table_factors(given, COSTS, sets)
    off = [abs(found[name] / factor - 1) for name, factor in true_factors().items()]
    before = [abs(1 / factor - 1) for factor in true_factors().values()]
    assert np.mean(off) < np.mean(before) / 3
    costs = COSTS.corrected(found)
    for parts, seconds in sets:
        assert costs.parts_seconds(given, parts)[0] == pytest.approx(seconds, rel=0.05)


def test_without_measurements_nothing_is_corrected() -> None:
    assert table_factors(problem(), COSTS, []) == {}


def test_the_refined_plan_is_at_least_as_fast_as_the_first_and_the_rules() -> None:
    given, clock = problem(), Clock(true_factors())
    seconds_of = lambda plan: max(clock.costs.device_seconds(given, plan))  # noqa: E731
    first = planned_by(given, planner(0, None)).plan
    best = planned_by(given, planner(60, clock)).plan
    assert seconds_of(best) <= seconds_of(first)
    assert seconds_of(best) < seconds_of(Rules(Rules.Config(replicate_up_to=1)).plan(given))
    for by in get_args(Measure):
        rule = BaselinePlanner.Config(by=by)
        assert seconds_of(best) < seconds_of(
            BaselinePlanner(rule, COSTS if rule.needs_learned_costs else None).plan(given)
        ), by
    assert seconds_of(best) < 0.98 * seconds_of(first)  # the first plan balanced wrong predictions
    assert "were measured: the slowest took" in best.notes[-1]


def test_only_devices_of_the_best_plans_are_measured_three_times() -> None:
    clock = Clock(true_factors())
    planned_by(problem(), planner(60, clock))
    runs = Counter(clock.calls)
    assert max(runs.values()) == 3
    assert min(runs.values()) == 1


@pytest.mark.parametrize("bandwidth", [1e9, 1e8])
def test_replicated_tables_count_in_a_plans_cost(bandwidth: float) -> None:
    """Exchanging the gradient of a small table costs less than exchanging its ids and vectors."""
    given, clock = problem(), Clock({})
    counted = statistics(TABLES)
    small = [
        TableSpec(f"small{n}", 100, 16, (f"small{n}",), "sum", {"name": "adagrad", "lr": 0.1}, 0.01) for n in range(8)
    ]
    looked_up = np.full(100, counted.rows["train"] // 20, np.int64)  # five ids an example
    tables = {**counted.tables, **{each.name: TableStatistics(each.name, 100, looked_up) for each in small}}
    topology = replace(given.topology, intra_bandwidth=bandwidth)
    known = DatasetStatistics(counted.rows, {}, tables=tables)
    given = Problem((*given.tables, *small), topology, known, 300, reserve=0)
    seconds_of = lambda plan: max(COSTS.device_seconds(given, plan))  # noqa: E731
    best = planner(60, clock, replicate_up_to=2**20).plan(given)
    rules = Rules(Rules.Config(replicate_up_to=2**20)).plan(given)
    assert any(each.sharding == "data_parallel" for each in rules.placements.values())
    assert seconds_of(best) <= seconds_of(rules)
    for by in get_args(Measure):
        rule = BaselinePlanner.Config(by=by)
        assert seconds_of(best) <= seconds_of(
            BaselinePlanner(rule, COSTS if rule.needs_learned_costs else None).plan(given)
        ), by


class Disturbed(Clock):
    """Simulates other work that slows the first measurements of the planner's first plan by half."""

    def __call__(self, problem: Problem, parts: Parts) -> float:
        seconds = super().__call__(problem, parts)
        return seconds * (1.5 if len(self.calls) <= 3 else 1.0)


def test_a_disturbed_measurement_does_not_discard_a_plan() -> None:
    given, clock = problem(), Disturbed({})
    first = planner(0, None).plan(given)
    rule = BaselinePlanner(BaselinePlanner.Config(by="lpt"), COSTS).plan(given)
    plan = refine_plan(given, lambda costs, near: near or first, [rule], COSTS, clock, 600)
    assert plan.placements == first.placements


def test_outliers_of_discarded_plans_are_measured_again() -> None:
    given, clock = problem(), Clock({})
    first, rule = planner(0, None).plan(given), BaselinePlanner(BaselinePlanner.Config(by="lpt"), COSTS).plan(given)
    late = lambda given, parts: clock(given, parts) * (1.5 if len(clock.calls) == 4 else 1.0)  # noqa: E731
    plan = refine_plan(given, lambda costs, near: near or first, [rule], COSTS, late, 600)
    assert plan.placements == first.placements
    assert Counter(clock.calls)[clock.calls[3]] == 2


def test_refinement_ends_when_nothing_new_is_found() -> None:
    given, clock = problem(), Clock({})
    first = planner(0, None).plan(given)
    plan = refine_plan(given, lambda costs, near: near or planner(0, None, costs).plan(given), [], COSTS, clock, 600)
    assert plan.placements == first.placements
    assert len(clock.calls) == 3


def test_a_plan_is_abandoned_at_the_first_device_that_is_too_slow() -> None:
    given, clock = problem(), Clock({})
    first, *rest = given.tables
    overloaded = planner(0, None).plan(given).placed(first.name, "table_wise", (1,))
    for table in rest:
        overloaded = overloaded.placed(table.name, "table_wise", (0,))
    refine_plan(given, lambda costs, near: near or planner(0, None, costs).plan(given), [overloaded], COSTS, clock, 600)
    assert sum(len(call) == len(rest) for call in clock.calls) == 1
    assert not any(len(call) == 1 for call in clock.calls)


class Stages:
    """A Progress that records which stages start and end."""

    def __init__(self) -> None:
        self.open, self.ended, self.shown = list[str](), list[str](), list[tuple[str, float]]()

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.open.append(stage)

    def advance(self, done: float, **figures: float | str) -> None:
        self.shown.append((self.open[-1], done))

    def finish(self, message: str = "") -> None:
        self.ended.append(self.open.pop())

    def note(self, message: str) -> None: ...


def test_its_progress_stage_ends_before_the_next_planner() -> None:
    stages = Stages()
    config = AutoShard.Config(refine_s=0.5, rollouts=0, depth=0, replicate_up_to=1)
    compared = compare_planners(problem(), config, stages, Clock(true_factors()))
    assert stages.ended == ["refine the plan", "plan"]
    assert [done for stage, done in stages.shown if stage == "plan"] == list(range(1, len(compared.entries) + 1))
    assert any(stage == "refine the plan" for stage, _ in stages.shown)


def test_refinement_without_a_machine_to_measure_is_refused() -> None:
    with pytest.raises(ConfigError, match="refine_s: 5, and only this machine can be measured"):
        planner(5, None).plan(problem())
