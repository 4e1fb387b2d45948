"""The contract of planners, tested on random tables and topologies; a planner in PLANNERS is tested by all of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_kit import OPTIMIZERS, statistics, table, topology

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.parts import built_in_names
from ziggurat.core.plan import Plan, Sharding
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlannerConfig, PlanningConfig, TablePlacement
from ziggurat.planning.constraints import check_plan
from ziggurat.planning.offload import BeyondMemoryConfig
from ziggurat.planning.quantities import parse_bytes

PLANNERS = {
    "rules": PlanningConfig(),
    "rules, not only fused": PlanningConfig.model_validate({"planner": {"fused": False, "replicate_up_to": 1}}),
    "autoshard": PlanningConfig.model_validate({"planner": {"name": "autoshard", "rollouts": 2, "depth": 2}}),
    "autoshard, not only fused": PlanningConfig.model_validate(
        {"planner": {"name": "autoshard", "fused": False, "replicate_up_to": 1, "rollouts": 0}}
    ),
    "baseline": PlanningConfig.model_validate({"planner": {"name": "baseline", "by": "size_lookup"}}),
    "baseline, random": PlanningConfig.model_validate({"planner": {"name": "baseline", "by": "random"}}),
    "recshard, greedy": PlanningConfig.model_validate({"planner": {"name": "recshard", "time_limit_s": 0}}),
    "torchrec": PlanningConfig.model_validate({"planner": {"name": "torchrec", "fused": False, "proposals": 20}}),
}
_ABSENT = set(built_in_names(PlannerConfig)) - {config.planner.title for config in PLANNERS.values()}
PLANNERS |= {name: PlanningConfig.model_validate({"planner": {"name": name}}) for name in sorted(_ABSENT)}

Case = tuple[list[TableSpec], Topology, DatasetStatistics | None]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(0, 8))
    tables = [
        table(
            f"t{k}",
            draw(st.integers(1, 3000)),
            4 * draw(st.integers(1, 12)),
            draw(st.sampled_from([*OPTIMIZERS])),
            features=tuple(f"f{k}.{n}" for n in range(draw(st.integers(1, 3)))),
            positions={f"f{k}.0": draw(st.integers(1, 3))} if draw(st.booleans()) else {},
        )
        for k in range(count)
    ]
    where = topology(
        draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.sampled_from([2e5, 4e5, 1e6, 1e9])),
        draw(st.sampled_from(["cpu", "cuda"])), draw(st.sampled_from([1e8, 1e11])),
        draw(st.sampled_from([0, 1e5, 1e9])),
    )  # fmt: skip
    if draw(st.booleans()):
        return tables, where, None
    weights = draw(st.lists(st.integers(0, 50), min_size=1, max_size=7))
    return tables, where, statistics(100, {t.name: [weights[r % len(weights)] for r in range(t.rows)] for t in tables})


def on_supported_kind(where: Topology, config: PlanningConfig) -> Topology:
    """Makes the topology's devices CPUs for autoshard: the shipped costs are of a CPU (see test_autoshard.py)."""
    return replace(where, kind="cpu") if config.planner.name == "autoshard" else where


def _found(case: Case, config: PlanningConfig) -> PlanEstimate | NoFeasiblePlan:
    tables, where, counted = case
    where = on_supported_kind(where, config)
    try:
        return plan_tables(tables, counted, where, config, 20)
    except NoFeasiblePlan as error:
        return error


@pytest.mark.parametrize("name", [each for each in PLANNERS if each != "torchrec"])
@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_plans_are_possible_fit_into_memory_and_repeat(name: str, case: Case) -> None:
    _check_contract(PLANNERS[name], case)


@settings(max_examples=8, deadline=None)
@given(case=cases())
def test_torchrecs_plans_are_possible_fit_into_memory_and_repeat(case: Case) -> None:
    _check_contract(PLANNERS["torchrec"], case)


def _check_contract(config: PlanningConfig, case: Case) -> None:
    tables, where, _ = case
    where = on_supported_kind(where, config)
    found = _found(case, config)
    again = _found(case, config)
    assert str(again) == str(found)
    if isinstance(found, NoFeasiblePlan):
        assert found.problem
        assert found.hint
        return
    check_plan(found.plan, tables, where)
    assert [*found.plan.placements] == [each.name for each in tables]
    assert all(device.spare_bytes >= 0 and device.slow_spare_bytes >= 0 for device in found.devices)
    assert Plan.from_json(json.loads(json.dumps(found.plan.to_json()))) == found.plan


@pytest.mark.parametrize("config", PLANNERS.values(), ids=PLANNERS)
@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_every_weight_is_on_one_device_or_on_all(config: PlanningConfig, case: Case) -> None:
    tables, where, counted = case
    where = on_supported_kind(where, config)
    found = plan_tables(tables, counted, replace(where, memory_bytes=10**12), config, 20)
    for spec in tables:
        placement, rows = found.plan.placements[spec.name], spec.rows
        if placement.sharding == "data_parallel":
            rows *= where.world_size
        elif placement.sharding == "row_tiers":
            copied, of_host, split = placement.tiers(rows)
            rows = where.world_size * copied.size + where.hosts * of_host.size + split.size
        shards = found.shards_of(spec.name)
        assert sum(each.cost.weight_bytes for each in shards) == 4 * rows * spec.dim
        assert all(each.shard.columns.size % 4 == 0 for each in shards)
    for device in found.devices:
        here = [each.cost for each in found.shards if each.shard.rank == device.rank]
        assert device.weight_bytes == sum(cost.weight_bytes for cost in here)
        assert device.seconds == pytest.approx(sum(cost.seconds for cost in here))
        kept = device.weight_bytes + device.state_bytes + device.buffer_bytes + device.spare_bytes - device.slow_bytes
        assert kept == pytest.approx(0.9 * 10**12, abs=2)


@pytest.mark.parametrize("config", PLANNERS.values(), ids=PLANNERS)
def test_more_memory_never_takes_a_plan_away(config: PlanningConfig) -> None:
    tables = [table(f"t{k}", 20_000 * (k + 1), 16, "adagrad") for k in range(6)]
    feasible = [_feasible(tables, config, memory) for memory in (1e6, 5e6, 10e6, 12e6, 15e6, 20e6, 40e6, 1e9)]
    assert feasible == sorted(feasible)
    assert feasible[-1]
    assert not feasible[0]


def _feasible(tables: list[TableSpec], config: PlanningConfig, memory: float) -> bool:
    try:
        plan_tables(tables, None, topology(devices=4, memory=memory, kind="cpu"), config, 20)
    except NoFeasiblePlan:
        return False
    return True


def _planned(specs: list[TableSpec], where: Topology, config: PlanningConfig, **changes: Any) -> PlanEstimate:
    return plan_tables(specs, None, where, config.model_copy(update=changes), 1000)


LARGE = [table(f"t{k}", 100_000, 16, "rowwise_adagrad") for k in range(8)]
"""6.8 MB each."""

every_planner = pytest.mark.parametrize("config", PLANNERS.values(), ids=PLANNERS)


@every_planner
def test_one_device_holds_everything(config: PlanningConfig) -> None:
    tables = [*LARGE, table("small", 5), table("adam", 700, 8, "adam")]
    found = _planned(tables, topology(devices=1, kind="cpu"), config)
    placements = found.plan.placements
    assert {each.ranks for each in placements.values()} == {(0,)}
    assert {each.sharding for name, each in placements.items() if name != "adam"} == {"table_wise"}
    assert placements["adam"].sharding == "data_parallel"  # no kernel on a CPU has adam
    assert found.devices[0].weight_bytes == sum(each.weight_bytes for each in tables)


@every_planner
def test_offloaded_tables_are_not_split_by_columns_or_replicated(config: PlanningConfig) -> None:
    tables = [table(f"t{k}", 40 if k % 2 else 100_000, 16, "adagrad") for k in range(8)]
    beyond = BeyondMemoryConfig.model_validate({"memory": "1MB"})
    for where in (topology(devices=4, kind="cpu"), topology(hosts=2, devices=2, kind="cpu")):
        placements = _planned(tables, where, config, beyond_memory=beyond).plan.placements
        assert {each.sharding for each in placements.values()} <= {"table_wise", "row_wise", "table_row_wise"}


@every_planner
def test_more_devices_than_tables(config: PlanningConfig) -> None:
    found = _planned(LARGE[:2], topology(devices=8, kind="cpu"), config)
    check_plan(found.plan, LARGE[:2], found.topology)
    assert len({each.shard.rank for each in found.shards}) >= 2


@every_planner
def test_without_a_reserve_all_memory_is_used(config: PlanningConfig) -> None:
    found = _planned(LARGE, topology(kind="cpu", memory=2e7), config, reserve=0)
    assert all(device.spare_bytes >= 0 for device in found.devices)


@every_planner
def test_no_tables_at_all(config: PlanningConfig) -> None:
    assert _planned([], topology(kind="cpu"), config).plan.placements == {}


@every_planner
def test_tables_without_lookups(config: PlanningConfig) -> None:
    """They need memory; if all tables are such, no device has any work."""
    tables = [table("used", 20_000), table("unused", 50_000)]
    unused = [0] * 50_000
    where = topology(devices=2, kind="cpu", memory=6e6)
    both = plan_tables(tables, statistics(100, {"used": [1] * 20_000, "unused": unused}), where, config, 20)
    assert both.ids_per_row == {"used": 200, "unused": 0}
    alone = plan_tables(tables[1:], statistics(100, {"unused": unused}), where, config, 20)
    for found in (both, alone):
        assert all(device.spare_bytes >= 0 for device in found.devices)
    assert sum(device.lookups for device in alone.devices) == 0


@every_planner
def test_missing_statistics_are_noted(config: PlanningConfig) -> None:
    found = _planned(LARGE, topology(kind="cpu"), config)
    assert (
        "no statistics: assumes one id for each feature, and that all rows are looked up equally often" in found.notes
    )
    assert set(found.ids_per_row.values()) == {1}


@every_planner
def test_constraints_are_kept_by_every_planner(config: PlanningConfig) -> None:
    constraints_by_table: dict[str, tuple[Sharding, tuple[int, ...] | None]] = {
        "t0": ("table_wise", (3,)),
        "t1": ("row_wise", None),
        "t2": ("table_row_wise", (2, 3)),
        "t3": ("grid", None),
        "t4": ("column_wise", (2, 0, 2, 1)),
        "t5": ("data_parallel", None),
        "t6": ("column_wise", None),
        "t7": ("table_row_wise", None),
    }
    constraints = {
        name: TablePlacement(sharding=sharding, ranks=ranks) for name, (sharding, ranks) in constraints_by_table.items()
    }
    for where in (topology(2, 2, kind="cpu"), topology(2, 2, kind="cpu", memory=40e6)):
        placements = _planned([*LARGE, table("free", 5000)], where, config, tables=constraints).plan.placements
        for name, (sharding, ranks) in constraints_by_table.items():
            assert placements[name].sharding == sharding
            assert ranks in (None, placements[name].ranks)
        assert placements["t7"].ranks in {(0, 1), (2, 3)}


@every_planner
def test_a_table_larger_than_any_device_is_split(config: PlanningConfig) -> None:
    large = table("large", 4_000_000, 16, "rowwise_adagrad")  # 272 MB
    where = topology(devices=4, memory=200e6, kind="cpu")
    found = _planned([*LARGE, large], where, config)
    assert len({each.shard.rank for each in found.shards_of("large")}) > 1
    assert all(device.spare_bytes >= 0 for device in found.devices)
    whole = {"large": TablePlacement(sharding="table_wise")}
    with pytest.raises(NoFeasiblePlan, match="table 'large', table_wise") as caught:
        _planned([*LARGE, large], where, config, tables=whole)
    assert "leave out planning.tables.large" in caught.value.hint


@every_planner
def test_short_memory_is_reported_with_the_memory_that_suffices(config: PlanningConfig) -> None:
    where = topology(devices=4, memory=10e6, kind="cpu")
    with pytest.raises(NoFeasiblePlan, match=r"10 MB of memory a device is .* short: the least that a plan") as caught:
        _planned(LARGE, where, config)
    message = re.search(r"([0-9.]+ [kMG]B) of memory a device", caught.value.hint)
    assert message is not None
    found = _planned(LARGE, replace(where, memory_bytes=parse_bytes(message[1])), config)
    assert all(device.spare_bytes >= 0 for device in found.devices)


@every_planner
def test_a_batch_too_large_for_memory_is_named(config: PlanningConfig) -> None:
    with pytest.raises(NoFeasiblePlan, match="for the ids and vectors of its 1,000 examples"):
        _planned(LARGE, topology(kind="cpu", memory=1e5), config)
