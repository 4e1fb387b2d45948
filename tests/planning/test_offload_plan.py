"""Cache slots of each table if memory cannot hold all rows."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planning.planning_kit import statistics, topology
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.plan import Plan, Span
from ziggurat.core.tables import TableSpec
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.offload import (
    ROW_BYTES,
    SLOT_BYTES,
    WINDOW,
    BeyondMemoryConfig,
    Need,
    memory_needs,
    with_slots,
    without_slots,
)
from ziggurat.planning.planner import plan_tables
from ziggurat.planning.recshard import RecShard
from ziggurat.planning.usage import Usage

EXAMPLES = 10


def spec(name: str, rows: int, dim: int = 16, optimizer: str = "rowwise_adagrad") -> TableSpec:
    return TableSpec(name, rows, dim, (name,), "sum", {"name": optimizer, "lr": 0.1}, 0.01)


def usage(table: TableSpec, skew: float = 1.0, ids_per_row: float = 1.0) -> Usage:
    accesses = (1e6 / np.arange(1, table.rows + 1) ** skew).astype(np.int64)
    return Usage(ids_per_row, np.random.default_rng(0).permutation(accesses), table.rows)


def row_bytes(table: TableSpec) -> int:
    return 4 * table.dim + (4 if table.optimizer["name"] == "rowwise_adagrad" else 0)


def bytes_taken(plan: Plan, tables: list[TableSpec], rank: int = 0) -> float:
    total = 0.0
    for table in tables:
        rows = sum(shard.rows.size for shard in plan.shards(table) if shard.rank == rank)
        slots = plan.placements[table.name].slots
        if rows and slots is not None:
            total += slots * (row_bytes(table) + SLOT_BYTES) + rows * ROW_BYTES
        else:
            total += rows * row_bytes(table)
    return total


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(200, 5000), min_size=1, max_size=5),
    skew=st.floats(0, 1.5),
    share=st.floats(0.35, 1.2),
)
def test_memory_is_filled_and_never_overfilled(rows: list[int], skew: float, share: float) -> None:
    tables = [spec(f"t{n}", count, dim=8 << n % 3) for n, count in enumerate(rows)]
    usages = {table.name: usage(table, skew) for table in tables}
    whole = sum(table.rows * row_bytes(table) for table in tables)
    plan = Plan.single_device(table.name for table in tables)
    try:
        found = with_slots(plan, tables, usages, EXAMPLES, memory_needs(EXAMPLES), share * whole)
    except NoFeasiblePlan:
        assert share < 0.8
        return
    assert bytes_taken(found, tables) <= share * whole
    slots = {name: each.slots for name, each in found.placements.items() if each.slots is not None}
    assert bool(slots) == (share < 1)
    for table in tables:
        count, together = slots.get(table.name), usages[table.name].distinct(WINDOW * EXAMPLES, Span(0, table.rows))
        assert count is None or together < count < table.rows
    largest = max(row_bytes(table) + SLOT_BYTES for table in tables)
    if all(table.name in slots for table in tables):
        assert bytes_taken(found, tables) > share * whole - largest - 1
    assert without_slots(found) == plan


def test_rows_with_more_lookups_a_byte_are_cached_first() -> None:
    hot, cold = spec("hot", 1000), spec("cold", 1000)
    usages = {"hot": usage(hot, 1.0, ids_per_row=20.0), "cold": usage(cold, 1.0, ids_per_row=1.0)}
    found = with_slots(Plan.single_device(["hot", "cold"]), [hot, cold], usages, 1, memory_needs(1), 110_000)
    assert found.placements["hot"].slots is None  # all of them
    assert found.placements["cold"].slots is not None
    assert found.notes[-1].startswith("beyond memory: the rank with the most misses")
    message = r"beyond memory: of table 'cold', \d{3} of 1,000 rows fit, [78]\d % of its look-ups"
    assert re.fullmatch(message, found.notes[0])


def test_notes_say_how_many_rows_will_be_missing() -> None:
    """Compared with drawn ids of steps, when the most looked-up rows have the slots."""
    table = spec("t", 5000)
    used = usage(table, 1.0)
    found = with_slots(
        Plan.single_device(["t"]), [table], {"t": used}, 8 * EXAMPLES, memory_needs(8 * EXAMPLES), 120_000
    )
    slots = found.placements["t"].slots
    assert slots is not None
    assert used.accesses is not None
    uncached = np.argsort(-used.accesses, kind="stable")[slots:]
    draw, shares = np.random.default_rng(0), used.accesses / used.accesses.sum()
    ids = [draw.choice(5000, 8 * EXAMPLES, p=shares) for _ in range(200)]
    missing = np.mean([np.isin(np.unique(each), uncached).sum() for each in ids])
    match = re.search(r"fetch (\d+) rows a step", found.notes[-1])
    assert match is not None
    assert int(match[1]) == pytest.approx(missing, rel=0.1)


def test_without_statistics_memory_is_shared_by_needs() -> None:
    tables = [spec("a", 1000), spec("b", 3000)]
    usages = {table.name: Usage.of(table, None) for table in tables}
    found = with_slots(Plan.single_device(["a", "b"]), tables, usages, EXAMPLES, memory_needs(EXAMPLES), 200_000)
    assert found.placements["a"].slots is None
    assert found.placements["b"].slots is not None


def test_an_evaluation_batch_fits() -> None:
    table = spec("t", 5000)
    plan = Plan.single_device(["t"])
    found = with_slots(plan, [table], {"t": usage(table)}, EXAMPLES, memory_needs(EXAMPLES, 1000), 130_000)
    assert (found.placements["t"].slots or 0) > usage(table).distinct(1000, Span(0, 5000))
    with pytest.raises(
        NoFeasiblePlan, match=r"(?s)an evaluation batch of 4,000 .* give at least .* evaluation\.batch_size"
    ):
        with_slots(plan, [table], {"t": usage(table)}, EXAMPLES, memory_needs(EXAMPLES, 4000), 130_000)


def test_a_batch_with_the_longest_bags_fits() -> None:
    """Here ten examples are known to look up as many ids as hundreds usually do."""
    table, plan = spec("t", 5000), Plan.single_device(["t"])
    need = Need(EXAMPLES, "a training batch with the longest bags", "training.batch_size", {"t": 4000})
    with pytest.raises(NoFeasiblePlan, match=r"(?s)with the longest bags, .* give at least .* training\.batch_size"):
        with_slots(plan, [table], {"t": usage(table)}, EXAMPLES, [*memory_needs(EXAMPLES), need], 130_000)
    found = with_slots(plan, [table], {"t": usage(table)}, EXAMPLES, [*memory_needs(EXAMPLES), need], 330_000)
    assert (found.placements["t"].slots or 0) > usage(table).distinct(4000, Span(0, 5000))


def test_ranks_share_the_slots_of_a_table_that_is_split_by_rows() -> None:
    split, whole = spec("split", 4001), spec("whole", 1000)
    plan = Plan(2, {}, 2).placed("split", "row_wise", (0, 1)).placed("whole", "table_wise", (1,))
    usages = {"split": usage(split), "whole": usage(whole)}
    found = with_slots(plan, [split, whole], usages, EXAMPLES, memory_needs(EXAMPLES), 150_000)
    assert max(bytes_taken(found, [split, whole], rank) for rank in (0, 1)) <= 150_000
    assert "rows of each shard fit" in found.notes[0]


@pytest.mark.parametrize(
    ("sharding", "optimizer", "message"),
    [
        ("table_wise", "adam", "is trained by adam"),
        ("data_parallel", "sgd", "is on every rank"),
        ("column_wise", "sgd", "is split by columns"),
    ],
)
def test_a_table_that_needs_slots_but_cannot_have_any_is_named(sharding: str, optimizer: str, message: str) -> None:
    table, other = spec("t", 5000, optimizer=optimizer), spec("u", 100)
    plan = Plan.single_device(["t", "u"]).placed("t", sharding, (0,))  # pyright: ignore[reportArgumentType] - of the three
    usages = {"t": usage(table), "u": usage(other)}
    with pytest.raises(ConfigError, match=rf"table 't', with .* there, {message}: all of its rows need memory"):
        with_slots(plan, [table, other], usages, 1, memory_needs(1), 100_000)


def test_of_rows_in_tiers_those_that_are_split_may_be_on_a_disk() -> None:
    """Of 4,000 rows each of two ranks holds 500 and 350, and half of the others; 64 floats a row with its state."""
    tiered, whole = spec("tiered", 4000, 63), spec("whole", 1000)
    plan = Plan(2, {}, 2).placed("tiered", "row_tiers", (0, 1), copied_rows=500, host_rows=700)
    plan = plan.placed("whole", "table_wise", (1,))
    usages = {"tiered": usage(tiered), "whole": usage(whole)}
    copies, row = (500 + 350) * 4 * 64, 4 * 64
    found = with_slots(plan, [tiered], usages, 1, memory_needs(1), copies + 1400 * row)
    assert found.placements["tiered"].slots is None
    memory = copies + 700 * row
    found = with_slots(plan, [tiered], usages, 1, memory_needs(1), memory).placements["tiered"]
    assert found.slots == int((memory - copies - 1400 * ROW_BYTES) / (row + SLOT_BYTES))
    assert found.ordered
    with pytest.raises(NoFeasiblePlan, match="which must fit together, need"):
        with_slots(plan, [tiered, whole], usages, EXAMPLES, memory_needs(EXAMPLES), copies - 1)
    copied = plan.placed("tiered", "row_tiers", (0, 1), copied_rows=500, host_rows=3500)
    with pytest.raises(ConfigError, match=r"'tiered', with [\d.]+ .?B there, has a copy of each row .* needs? memory"):
        with_slots(copied, [tiered], usages, EXAMPLES, memory_needs(EXAMPLES), copies)


def test_recshard_places_tables_by_their_disk_reads() -> None:
    """Two tables with uniform look-ups need the disk, two skewed ones do not: each rank gets one of each kind. Memory
    is for rows alone; a step's buffers do not count."""
    flat, skewed = [spec(f"flat{n}", 4000) for n in range(2)], [spec(f"skewed{n}", 4000) for n in range(2)]
    tables, draw = [*flat, *skewed], np.random.default_rng(0)
    counts = {table.name: [2] * 4000 for table in flat}
    counts |= {table.name: np.bincount(draw.zipf(3.0, 8000) % 4000, minlength=4000).tolist() for table in skewed}
    counted = statistics(8000, counts)
    memory, planner = 200_000, RecShard.Config(time_limit_s=2)
    offload = BeyondMemoryConfig.model_validate({"memory": memory})
    config = PlanningConfig(planner=planner, beyond_memory=offload, reserve=0.5)
    memories = topology(1, 2, memory=memory, kind="cpu", lookup=1e10, slow_memory=1e9)
    planned = plan_tables(tables, counted, memories, config, EXAMPLES)
    assert {len({planned.plan.placements[t.name].ranks for t in pair}) for pair in (flat, skewed)} == {2}
    first, second = planned.devices
    assert first.slow_lookups == pytest.approx(second.slow_lookups, rel=0.05)
    assert 0.9 * memory < first.fast_bytes < 1.2 * memory
    usages = {table.name: Usage.of(table, counted) for table in tables}
    slotted = with_slots(planned.plan, tables, usages, 2 * EXAMPLES, memory_needs(2 * EXAMPLES), memory)
    assert max(bytes_taken(slotted, tables, rank) for rank in (0, 1)) <= memory
    assert all(each.fast_rows is None for each in slotted.placements.values())


def test_slots_are_saved_in_a_plan() -> None:
    plan = Plan.single_device(["t"]).placed("t", "table_wise", (0,), slots=7)
    assert Plan.from_json(plan.to_json()) == plan
    old = plan.to_json() | {"version": 3}
    del old["placements"]["t"]["slots"]
    assert Plan.from_json(old).placements["t"].slots is None
