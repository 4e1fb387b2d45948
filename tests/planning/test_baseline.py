"""The baseline planners: each sorts by its measure, keeps tables whole, and fits into memory."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import numpy as np
import pytest
from planning_kit import statistics, table, topology

from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.tables import TableSpec
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.autoshard.baseline import Measure
from ziggurat.planning.config import PlanningConfig

MEASURES = get_args(Measure)


def config(by: str, **others: Any) -> PlanningConfig:
    return PlanningConfig.model_validate({"planner": {"name": "baseline", "by": by}, "reserve": 0, **others})


def plan_by(
    by: str, tables: list[TableSpec], ids: dict[str, int], devices: int = 2, memory: float = 1e9
) -> PlanEstimate:
    """Plans with the given baseline; each table's ids are spread evenly over its rows."""
    counts = {
        each.name: np.bincount(np.arange(ids[each.name] * 100) % each.rows, minlength=each.rows) for each in tables
    }
    counted = statistics(100, {name: each.tolist() for name, each in counts.items()})
    where = topology(devices=devices, kind="cpu", memory=memory)
    return plan_tables(tables, counted, where, config(by), 20)


def sums(planned: PlanEstimate, measure: dict[str, float]) -> list[float]:
    """Returns the sums of a measure on each device, ascending."""
    found: defaultdict[int, float] = defaultdict(float)
    for name, placement in planned.plan.placements.items():
        assert placement.sharding == "table_wise"
        found[placement.ranks[0]] += measure[name]
    return sorted(found.values())


TABLES = [table("a", 1000, 64), table("b", 9000, 8), table("c", 300, 32), table("d", 2000, 16), table("e", 50, 4)]
IDS = {"a": 1, "b": 3, "c": 5, "d": 2, "e": 30}
DIMS = {each.name: float(each.dim) for each in TABLES}
LOOKUPS = {name: dim * IDS[name] for name, dim in DIMS.items()}
ROWS = {each.name: each.rows for each in TABLES}


@pytest.mark.parametrize(
    ("by", "measure", "even"),
    [
        ("size", {each.name: float(each.weight_bytes) for each in TABLES}, [295_600 + 800, 288_000 + 128_000 + 800]),
        ("dim", DIMS, [60, 64]),
        ("lookup", LOOKUPS, [64 + 24 + 120, 160 + 32]),
        ("size_lookup", {name: each * np.log10(ROWS[name]) for name, each in LOOKUPS.items()}, None),
    ],
)
def test_greedy_by_one_measure(by: str, measure: dict[str, float], even: list[float] | None) -> None:
    """Tables go by falling measure, each to the device with the least sum so far."""
    planned = plan_by(by, TABLES, IDS)
    loads = [0.0, 0.0]
    for name in sorted(measure, key=lambda name: -measure[name]):
        loads[loads.index(min(loads))] += measure[name]
    assert sums(planned, measure) == pytest.approx(sorted(loads))
    if by == "dim":
        assert sums(planned, measure) == even
    assert planned.notes[0] == f"baseline: whole tables by {by}"


def test_random_depends_on_the_seed() -> None:
    many = [table(f"t{k}", 1000) for k in range(24)]
    where = topology(devices=4, kind="cpu", memory=7 * 64_000 + 50_000)
    plans = [
        plan_tables(
            many,
            None,
            where,
            PlanningConfig.model_validate({"planner": {"name": "baseline", "by": "random", "seed": s}}),
            1,
        ).plan
        for s in (0, 0, 1)
    ]
    assert plans[0] == plans[1] != plans[2]


@pytest.mark.parametrize("by", MEASURES)
def test_edge_cases_have_plans(by: str) -> None:
    """One device; more devices than tables; tables without look-ups; no tables; no statistics."""
    assert {p.ranks for p in plan_by(by, TABLES, IDS, devices=1).plan.placements.values()} == {(0,)}
    assert len(plan_by(by, TABLES, IDS, devices=8).plan.placements) == 5
    unused = plan_by(by, TABLES, dict.fromkeys(IDS, 0))
    assert len(unused.plan.placements) == 5
    assert not plan_tables([], None, topology(kind="cpu"), config(by), 20).plan.placements
    assert len(plan_tables(TABLES, None, topology(kind="cpu"), config(by), 20).plan.placements) == 5


@pytest.mark.parametrize("by", MEASURES)
def test_a_table_too_large_for_any_device_is_split_by_rows_or_refused(by: str) -> None:
    big = [*TABLES, table("big", 40_000, 16)]
    planned = plan_by(by, big, {**IDS, "big": 1}, devices=4, memory=1.2e6)
    assert planned.plan.placements["big"].sharding == "row_wise"
    assert all(device.spare_bytes >= 0 for device in planned.devices)
    with pytest.raises(NoFeasiblePlan, match="the least that a plan was found for is"):
        plan_by(by, big, {**IDS, "big": 1}, devices=4, memory=3e5)


def test_constraints_hold() -> None:
    asked = config("size", tables={"a": {"sharding": "column_wise", "ranks": [1, 0]}, "b": {"sharding": "row_wise"}})
    placements = plan_tables(TABLES, None, topology(devices=2, kind="cpu"), asked, 20).plan.placements
    assert placements["a"].ranks == (1, 0)
    assert placements["b"].sharding == "row_wise"


@pytest.mark.parametrize("by", ["lpt", "ldm"])
def test_costs_of_another_kind_of_device_are_refused(by: str) -> None:
    with pytest.raises(ConfigError, match=r"costs of .*, and the plan is for cuda devices"):
        plan_tables(TABLES, None, topology(kind="cuda"), config(by), 20)
