"""RecShard: which rows are fast, on which device, and the notes of its plans."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planning_kit import OPTIMIZERS, statistics, table, topology

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.problem import Problem
from ziggurat.planning.recshard.filling import Demand, load, water_filling
from ziggurat.planning.recshard.linear_model import LinearModel, Option, Solution, solve
from ziggurat.planning.recshard.native_output import native_output_to_stderr

BATCH = 100
TRAINED = 10_000


def config(limit: float = 10, **keys: Any) -> PlanningConfig:
    return PlanningConfig.model_validate({"planner": {"name": "recshard", "time_limit_s": limit}, "reserve": 0, **keys})


def zipf(rows: int, ids: float, seed: int = 0, power: float = 1.1) -> list[int]:
    """Returns the look-ups of each row over all training rows, at least one each, in random order."""
    weights = np.arange(1, rows + 1) ** -power
    counts = np.ceil(weights / weights.sum() * ids * TRAINED).astype(int)
    return np.random.default_rng(seed).permutation(counts).tolist()


def skewed(count: int = 8) -> tuple[list[TableSpec], DatasetStatistics]:
    sizes = [1000 * (1 + k % 4) for k in range(count)]
    tables = [table(f"t{k}", rows, 16, "rowwise_adagrad") for k, rows in enumerate(sizes)]
    return tables, statistics(TRAINED, {t.name: zipf(t.rows, 1 + k % 3, k) for k, t in enumerate(tables)})


def planned(
    specs: list[TableSpec], counted: DatasetStatistics | None, where: Topology, limit: float = 10, **keys: Any
) -> PlanEstimate:
    return plan_tables(specs, counted, where, config(limit, **keys), BATCH)


def fast_rows(found: PlanEstimate) -> dict[str, int | None]:
    return {name: placement.fast_rows for name, placement in found.plan.placements.items()}


TIGHT = topology(devices=2, memory=6e5, slow_memory=2e6)  # for 1.36 MB of tables, and 0.4 MB of buffers on each device


@st.composite
def models(draw: st.DrawFn) -> LinearModel:
    """Draws up to six tables: whole on any device with some or all rows fast, and possibly split equally over all."""
    devices, tables = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    whole = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 100)), min_size=1, max_size=2)
    found: list[list[Option]] = []
    for _ in range(tables):
        options = [
            Option((rank,), (float(fast),), (0.0,), (float(fast + rest),), (float(seconds),))
            for fast, rest, seconds in draw(whole)
            for rank in range(devices)
        ]
        if draw(st.booleans()):
            fast, slow, seconds = (float(draw(st.integers(0, 30))) for _ in range(3))
            total = (fast + slow,) * devices
            options.append(
                Option(tuple(range(devices)), (fast,) * devices, (slow,) * devices, total, (seconds,) * devices)
            )
        found.append(options)
    return LinearModel(found, devices, draw(st.integers(1, 150)) + 0.5, draw(st.integers(0, 150)) + 0.5)


def _on_any(total: float, seconds: float) -> list[Option]:
    return [Option((rank,), (0.0,), (0.0,), (total,), (seconds,)) for rank in range(3)]


def _on_all(fast: float, slow: float, seconds: float) -> Option:
    return Option((0, 1, 2), (fast,) * 3, (slow,) * 3, (fast + slow,) * 3, (seconds,) * 3)


PRESOLVED_WRONGLY = LinearModel(
    [
        [*_on_any(0, 51), _on_all(0, 24, 6)],
        [*_on_any(0, 58), _on_all(0, 8, 0)],
        [*_on_any(50, 0), _on_all(0, 0, 1)],
        _on_any(0, 26),
        [*_on_any(27, 11), _on_all(1, 0, 1)],
    ],
    devices=3,
    fast=1.5,
    slow=108.5,
)
"""The best choice takes 32 seconds; HiGHS 1.14 with presolve returns 33."""


@settings(max_examples=60, deadline=None)
@given(model=models())
@example(model=PRESOLVED_WRONGLY)
def test_the_linear_models_optimum_is_that_of_enumeration(model: LinearModel) -> None:
    choices = product(*(range(len(options)) for options in model.tables))
    best = min((seconds for choice in choices if (seconds := model.seconds(choice)) is not None), default=None)
    found = solve(model, 60, gap=1e-9)
    if best is None:
        assert found == "has no solution"
        return
    assert isinstance(found, Solution)
    assert found.proved
    assert found.seconds == pytest.approx(best, rel=1e-5, abs=1e-9)
    assert found.bound <= best * (1 + 1e-5) + 1e-9
    assert model.seconds(found.choice) == found.seconds


def test_what_the_solver_prints_is_not_on_standard_output(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The C library holds back what native code puts: it must not appear on standard output later, either."""
    libc, real = ctypes.CDLL(None), scipy.optimize.milp

    def milp(*arguments: Any, **options: Any) -> Any:
        libc.puts(b"tmpSolver.run();")
        os.write(1, b"unbuffered\n")
        return real(*arguments, **options)

    monkeypatch.setattr(scipy.optimize, "milp", milp)
    libc.puts(b"puts before")
    sys.stdout.write("print before\n")
    assert isinstance(solve(PRESOLVED_WRONGLY, 60), Solution)
    libc.puts(b"puts after")
    libc.fflush(None)
    print("print after")
    captured = capfd.readouterr()
    assert sorted(captured.out.splitlines()) == ["print after", "print before", "puts after", "puts before"]
    assert sorted(captured.err.splitlines()) == ["tmpSolver.run();", "unbuffered"]


def test_output_of_overlapping_threads_is_restored_by_the_last(capfd: pytest.CaptureFixture[str]) -> None:
    outer, inner = native_output_to_stderr(), native_output_to_stderr()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    os.write(1, b"within\n")
    inner.__exit__(None, None, None)
    os.write(1, b"after\n")
    assert capfd.readouterr() == ("after\n", "within\n")


def test_options_of_real_tables_hold_to_their_memories() -> None:
    model = LinearModel([[Option((0,), (60.0,), (0.0,), (90.0,), (3.0,))]], 1, 50.0, 100.0)
    assert model.seconds([0]) is None
    assert solve(model, 10) == "has no solution"
    assert replace(model, fast=70.0).seconds([0]) == 3.0
    assert replace(model, fast=70.0, slow=10.0).seconds([0]) is None  # together


def demands(where: Topology = TIGHT) -> tuple[Problem, list[Demand]]:
    tables, counted = skewed(5)
    problem = Problem(tuple(tables), where, counted, BATCH, reserve=0)
    return problem, [Demand.of(problem, each) for each in tables]


@pytest.mark.parametrize("capacity", [0.0, 1000.0, 12_345.0, 200_000.0, 1e9])
def test_water_filling_is_as_good_as_choosing_row_by_row(capacity: float) -> None:
    """Compared with a list of all rows sorted by saving a byte."""
    _, found = demands()
    rows = water_filling(found, capacity)
    singles = sorted(
        (saving for each in found for saving in np.repeat(each.savings, each.sizes.astype(int))),
        reverse=True,
    )  # fmt: skip
    each = found[0].row_bytes  # the same in all
    assert sum(rows) == min(int(capacity // each), len(singles))
    saved = sum(np.repeat(d.savings, d.sizes.astype(int))[:n].sum() * each for d, n in zip(found, rows, strict=True))
    assert saved == pytest.approx(sum(singles[: sum(rows)]) * each)


def test_what_a_filled_device_takes_is_what_the_cost_model_says() -> None:
    problem, found = demands()
    each, buffers = found[0], sum(each.buffer_bytes for each in found)
    for capacity in (0.0, 10_000.0, 100_000.0, 1e9):
        rows = water_filling(found, capacity)
        seconds, price = load(found, buffers + capacity)
        exact = 0.0
        for spec, fast in zip(problem.tables, rows, strict=True):
            plan = Plan(2, {spec.name: Placement("table_wise", (0,), fast)}, 2)
            exact += problem.costs(spec, plan)[0][1].seconds
        assert (
            exact * (1 - 1e-12) - price * each.row_bytes <= seconds <= exact * (1 + 1e-12)
        )  # it may use a fraction of a row
        assert (price == 0) == (capacity == 1e9)


def test_hot_rows_are_fast_and_the_better_plan_is_taken() -> None:
    tables, counted = skewed()
    solved, greedy = planned(tables, counted, TIGHT), planned(tables, counted, TIGHT, limit=0)
    assert solved.step_seconds <= greedy.step_seconds
    assert solved.plan.notes[0].startswith("recshard: ")
    assert re.search(r"linear model of \d+ options was (solved, its gap 0\.\d+%|stopped after)", solved.notes[0])
    assert greedy.notes == ("recshard: the greedy method's plan; no linear model (time_limit_s: 0)",)
    for found in (solved, greedy):
        assert any(rows is not None for rows in fast_rows(found).values())
        assert all(0 <= device.spare_bytes < 68 for device in found.devices)  # less than a row
        assert found.imbalance < 1.02
        slow = sum(device.slow_bytes for device in found.devices)
        assert 0.2 < slow / sum(4 * 17 * t.rows for t in tables) < 0.9
        assert found.slow_share < 0.15


def test_the_rows_that_are_fast_are_the_most_used() -> None:
    """With one table on one device, the slow share of look-ups is that of the least looked-up rows."""
    counts = zipf(2000, 3)
    found = planned(
        [table("t", 2000)], statistics(TRAINED, {"t": counts}), topology(devices=1, memory=1e5, slow_memory=1e6)
    )
    fast = found.plan.placements["t"].fast_rows
    assert fast is not None
    assert 0 < fast < 2000
    assert found.slow_share == pytest.approx(sum(sorted(counts)[: 2000 - fast]) / sum(counts))
    assert "on one device, what is hottest is fast" in found.notes[0]


def test_with_room_for_all_nothing_is_reordered() -> None:
    tables, counted = skewed()
    found = planned(tables, counted, topology(devices=2, memory=1e9, slow_memory=1e9))
    assert set(fast_rows(found).values()) == {None}
    assert found.slow_share == 0
    rules = plan_tables(tables, counted, topology(devices=2, memory=1e9), PlanningConfig(reserve=0), BATCH)
    assert found.step_seconds <= rules.step_seconds * 1.02


def test_without_slow_memory_every_row_is_fast_and_it_is_said() -> None:
    tables, counted = skewed()
    found = planned(tables, counted, topology(devices=2, memory=1e7))
    assert set(fast_rows(found).values()) == {None}
    assert "no slow memory (planning.topology.slow_memory): every row is fast" in found.notes
    assert found.imbalance < 1.02


def test_without_statistics_it_is_said_that_no_row_is_hotter() -> None:
    tables, _ = skewed()
    found = planned(tables, None, TIGHT)
    assert "without statistics no row is known to be hotter than another: the first ids are fast" in found.notes
    assert sum(device.slow_bytes for device in found.devices) > 0


def test_tables_without_lookups_go_where_memory_is_free() -> None:
    tables = [table("used", 1000), table("unused", 5000)]
    counted = statistics(TRAINED, {"used": zipf(1000, 3), "unused": [0] * 5000})
    found = planned(tables, counted, topology(devices=2, memory=150e3, slow_memory=1e6))
    assert found.slow_share == 0
    assert found.plan.placements["used"].fast_rows is None
    nothing = planned([table("unused", 5000)], statistics(TRAINED, {"unused": [0] * 5000}), TIGHT)
    assert nothing.slow_share == 0


def test_more_devices_than_tables() -> None:
    tables, counted = skewed(2)
    found = planned(tables, counted, topology(devices=8, memory=1e6, slow_memory=1e6))
    assert {rank for each in found.plan.placements.values() for rank in each.ranks} <= set(range(8))
    assert len({*(each.shard.rank for each in found.shards)}) >= 2


def test_no_tables() -> None:
    assert planned([], None, TIGHT).plan.placements == {}


def test_a_table_too_large_for_a_device_is_split_and_its_hot_rows_distributed() -> None:
    large = table("large", 40_000, 16)  # 2.56 MB
    counted = statistics(TRAINED, {"large": zipf(40_000, 3)})
    found = planned([large], counted, topology(devices=4, memory=2e5, slow_memory=1e6))
    placement = found.plan.placements["large"]
    assert placement.sharding == "row_wise"
    assert placement.fast_rows is not None
    assert 0 < placement.fast_rows < 40_000
    seconds = [device.seconds for device in found.devices]
    assert max(seconds) < 1.2 * min(seconds)  # in the order of ids the hottest rows could all be on one device
    fast = [each.shard.fast_rows for each in found.shards]
    assert max(f for f in fast if f is not None) - min(f for f in fast if f is not None) <= 1
    with pytest.raises(NoFeasiblePlan):
        planned([large], counted, topology(devices=1, memory=2e5, slow_memory=1e6))


def test_the_hottest_table_is_split() -> None:
    tables, counted = skewed()
    hot = table("hot", 4000, 64)
    counted = replace(counted, tables={**counted.tables, **statistics(TRAINED, {"hot": zipf(4000, 60)}).tables})
    found = planned([*tables, hot], counted, topology(devices=4, memory=4e7, slow_memory=1e7))
    assert found.plan.placements["hot"].sharding == "row_wise"


def test_a_table_without_a_kernel_is_replicated_in_fast_memory() -> None:
    tables, counted = skewed()
    own = table("own", 2000, 16, "adam")
    counted = replace(counted, tables={**counted.tables, **statistics(TRAINED, {"own": zipf(2000, 1)}).tables})
    found = planned([*tables, own], counted, replace(TIGHT, kind="cpu", memory_bytes=1_500_000))
    assert found.plan.placements["own"] == Placement("data_parallel", (0, 1))
    assert all(each.cost.slow_bytes == 0 for each in found.shards_of("own"))


def test_constraints_hold_and_only_fast_rows_are_chosen() -> None:
    tables, counted = skewed()
    constraints: dict[str, Any] = {
        "t0": {"sharding": "table_wise", "ranks": [1]},
        "t1": {"sharding": "row_wise"},
        "t2": {"sharding": "column_wise"},
        "t3": {"sharding": "column_wise", "ranks": [3, 3]},
        "t4": {"sharding": "data_parallel"},
        "t5": {"sharding": "table_row_wise"},
        "t6": {"sharding": "grid"},
    }
    where = topology(2, 2, memory=6e5, slow_memory=1e6)
    for limit in (0, 5):
        found = planned(tables, counted, where, limit, tables=constraints)
        placements = found.plan.placements
        assert {name: placements[name].sharding for name in constraints} == {
            n: w["sharding"] for n, w in constraints.items()
        }
        assert placements["t0"].ranks == (1,)
        assert placements["t3"].ranks == (3, 3)
        assert placements["t4"].fast_rows is None
        assert placements["t5"].ranks in ((0, 1), (2, 3))
        assert any(each.fast_rows is not None for each in placements.values())


def test_the_same_problem_the_same_plan() -> None:
    tables, counted = skewed(6)
    assert planned(tables, counted, TIGHT, limit=0) == planned(tables, counted, TIGHT, limit=0)


def test_if_both_memories_are_short_the_error_says_what_suffices() -> None:
    tables, counted = skewed()
    with pytest.raises(
        NoFeasiblePlan, match=r"600 kB of memory a device beside 100 kB of slow memory is .* short"
    ) as raised:
        planned(tables, counted, topology(devices=2, memory=6e5, slow_memory=1e5))
    assert "planning.topology.slow_memory: " in raised.value.hint
    memory = re.search(r"planning\.topology\.slow_memory: ([0-9.]+) kB", raised.value.hint)
    assert memory is not None
    planned(tables, counted, topology(devices=2, memory=6e5, slow_memory=1000 * float(memory[1])))


def test_the_rules_advice_names_the_planner_that_uses_slow_memory() -> None:
    tables, counted = skewed()
    small = topology(devices=2, memory=6e5, slow_memory=4e6)
    with pytest.raises(NoFeasiblePlan, match="short") as raised:
        plan_tables(tables, counted, small, PlanningConfig(reserve=0), BATCH)
    assert "planning.planner: {name: recshard}, which uses the slow memory" in raised.value.hint
    found = plan_tables(tables, counted, replace(small, memory_bytes=10**8), PlanningConfig(reserve=0), BATCH)
    assert all(device.slow_bytes == 0 and device.slow_spare_bytes == 4_000_000 for device in found.devices)


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if not name.startswith("adam")])
def test_a_rows_bytes_include_its_optimizer_state(optimizer: str) -> None:
    found = planned([table("t", 3000, 16, optimizer)], statistics(TRAINED, {"t": zipf(3000, 1)}),
                    topology(devices=1, memory=1e5, slow_memory=1e6))  # fmt: skip
    each = {"sgd": 64, "rowwise_adagrad": 68, "adagrad": 128}[optimizer]
    fast = found.plan.placements["t"].fast_rows
    assert fast is not None
    assert found.devices[0].slow_bytes == each * (3000 - fast)
    assert 0 <= found.devices[0].spare_bytes < each
