"""The comparison of planners: all that can plan for the devices, by the same costs, none below the proven bound."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from planning_kit import statistics, table, topology

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.topology import Topology
from ziggurat.planning.autoshard.baseline import Measure
from ziggurat.planning.comparison import Comparison, compare_planners
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.planner import problem_of

TABLES = [table(f"t{k}", 200 * (k + 1), 16 * (1 + k % 3)) for k in range(12)]
COUNTS = statistics(1000, {each.name: [(r * 7) % 23 for r in range(each.rows)] for each in TABLES})


def compared(where: Topology, planner: dict[str, Any] | None = None, **others: Any) -> Comparison:
    config = PlanningConfig.model_validate({"planner": planner or {}, **others})
    return compare_planners(problem_of(TABLES, COUNTS, where, config, 64), config.planner)


def test_every_planner_is_compared_and_autoshard_is_best_by_its_own_costs() -> None:
    found = compared(topology(kind="cpu"), {"name": "baseline", "by": "dim"})
    names = [entry.name for entry in found.entries]
    assert names[0] == "by dim"
    assert {*names} >= {"rules", "autoshard", *(f"by {measure}" for measure in get_args(Measure))}
    assert len(names) == len({*names})
    assert found.planned is found.entries[0].planned
    assert "kernels as measured on" in found.judge
    for entry in found.entries:
        assert len(entry.seconds) == 4
        assert entry.imbalance >= 1
    assert not found.proven
    ours, *others = sorted(found.entries, key=lambda entry: (entry.name != "autoshard", entry.slowest))
    assert ours.slowest <= others[0].slowest * 1.02


def test_unmeasured_devices_are_judged_by_the_cost_model() -> None:
    found = compared(topology(kind="cuda"))
    assert found.judge == "the cost model"
    assert found.proven
    assert not {"autoshard", "by lpt", "by ldm"} & {entry.name for entry in found.entries}
    for entry in found.entries:
        assert entry.planned is not None
        assert entry.seconds == tuple(device.seconds for device in entry.planned.devices)
        assert found.even_share <= entry.slowest


def test_slow_memory_adds_recshard_and_is_judged_by_the_cost_model() -> None:
    found = compared(topology(kind="cpu", slow_memory=1e9))
    assert found.judge == "the cost model"
    assert "recshard" in {entry.name for entry in found.entries}


def test_planners_without_a_plan_are_reported_and_the_configured_one_raises() -> None:
    """Fast memory only suffices for plans with rows in slow memory."""
    where = topology(kind="cpu", memory=7e5, slow_memory=1e9)
    found = compared(where, {"name": "recshard", "time_limit_s": 0}, reserve=0)
    refused = {entry.name for entry in found.entries if entry.planned is None}
    assert "rules" in refused
    assert all(entry.refused and not entry.seconds for entry in found.entries if entry.planned is None)
    as_json = found.to_json()["planners"]
    assert [each["plan"] is None for each in as_json] == [entry.planned is None for entry in found.entries]
    with pytest.raises(NoFeasiblePlan, match="short: the least that a plan was found for"):
        compared(where, reserve=0)


def test_the_bound_is_an_even_share_of_whole_tables() -> None:
    """By the cost model, without exchanges, it is the total of any plan of whole tables, divided by the devices."""
    alone = topology(devices=1, kind="cuda")
    found = compared(alone)
    assert found.even_share == pytest.approx(min(entry.slowest for entry in found.entries))
    nothing = compare_planners(problem_of([], None, alone, PlanningConfig(), 64), PlanningConfig().planner)
    assert nothing.even_share == 0
