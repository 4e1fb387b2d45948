"""Plans: the positions of rows, which of them are in fast memory, and plans of older versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Placement, Plan, Shard, Sharding, Span, round_robin_counts
from ziggurat.core.row_order import accesses_by_position, frequency_ranks, round_robin_positions, tier_positions
from ziggurat.core.tables import TableSpec


def spec(rows: int) -> TableSpec:
    return TableSpec("t", rows, 8, ("t",), "sum", {"name": "sgd"}, 0.01)


def plan(sharding: Sharding, ranks: tuple[int, ...], fast_rows: int | None, world: int = 4) -> Plan:
    return Plan(world, {"t": Placement(sharding, ranks, fast_rows)}, 2, ("what was found",))


def test_a_plan_is_read_as_it_was_written_and_version_2_still_is() -> None:
    made = plan("row_wise", (0, 1, 2, 3), 7)
    values = made.to_json()
    assert values["version"] == 5
    assert Plan.from_json(values) == made
    old: dict[str, Any] = {
        "version": 2, "world_size": 2, "local_size": 2,
        "placements": {"t": {"sharding": "table_wise", "ranks": [1]}},
    }  # fmt: skip
    assert Plan.from_json(old) == Plan(2, {"t": Placement("table_wise", (1,))}, 2)
    with pytest.raises(ConfigError, match="plan version 6 is not 2 or 3 or 4 or 5"):
        Plan.from_json({**values, "version": 6})


def test_fast_rows_of_shards() -> None:
    """Ten rows over four ranks are 3, 3, 3 and 1; the first nine are distributed 3, 3, 2, 1."""
    found = plan("row_wise", (0, 1, 2, 3), 9).shards(spec(10))
    assert [(shard.rows, shard.fast_rows) for shard in found] == [
        (Span(0, 3), 3), (Span(3, 3), 3), (Span(6, 3), 2), (Span(9, 1), 1),
    ]  # fmt: skip
    assert [shard.slow for shard in found] == [Span(3, 0), Span(6, 0), Span(8, 1), Span(10, 0)]
    whole = plan("table_wise", (2,), 4).shards(spec(10))
    assert whole == (Shard(2, Span(0, 10), Span(0, 8), 4),)
    columns = plan("column_wise", (2, 0), 4).shards(spec(10))
    assert [(shard.rank, shard.columns, shard.fast_rows) for shard in columns] == [
        (2, Span(0, 4), 4),
        (0, Span(4, 4), 4),
    ]
    grid = plan("grid", (0, 1, 2, 3), 3).shards(spec(10))
    assert [(shard.rows.first, shard.columns.first, shard.fast_rows) for shard in grid] == [
        (0, 0, 2), (5, 0, 1), (0, 4, 2), (5, 4, 1),
    ]  # fmt: skip
    assert plan("table_wise", (2,), None).shards(spec(10))[0].slow == Span(10, 0)


@given(rows=st.integers(1, 60), parts=st.integers(1, 9), fast=st.integers(0, 60))
def test_round_robin_positions_match_round_robin_counts(rows: int, parts: int, fast: int) -> None:
    """The positions of the hottest rows are the first ones of each range, as many as the range's count."""
    fast = min(fast, rows)
    positions = round_robin_positions(rows, parts)
    assert sorted(positions.tolist()) == list(range(rows))
    size = -(-rows // parts)
    spans = [Span(min(k * size, rows), max(0, min(size, rows - k * size))) for k in range(parts)]
    counts = round_robin_counts(spans, fast)
    assert sum(counts) == fast
    hot = {span.first + k for span, count in zip(spans, counts, strict=True) for k in range(count)}
    assert set(positions[:fast].tolist()) == hot


def test_equal_ranges_get_every_nth_rank() -> None:
    positions = round_robin_positions(12, 3)
    found = [(position // 4, position % 4) for position in positions.tolist()]
    assert found == [(rank % 3, rank // 3) for rank in range(12)]


def test_rows_with_equal_counts_keep_the_order_of_their_ids() -> None:
    accesses = np.array([2, 9, 0, 9, 2], np.int64)
    assert frequency_ranks(accesses, 5).tolist() == [2, 0, 4, 1, 3]
    assert frequency_ranks(accesses, 5).dtype == np.int32
    assert frequency_ranks(None, 3).tolist() == [0, 1, 2]
    assert accesses_by_position(accesses, 1).tolist() == [9, 9, 2, 2, 0]
    assert accesses_by_position(accesses, 2).tolist() == [9, 2, 0, 9, 2]  # ranks 0, 2, 4 and 1, 3


TIERS = Plan(4, {}, 2).placed("t", "row_tiers", range(4), copied_rows=3, host_rows=4)


def test_shards_of_tiers() -> None:
    """Twelve rows: three on every rank; four on every host, two a rank; five over all ranks, 2, 2, 1 and 0."""
    found = TIERS.shards(spec(12))
    assert [(shard.rank, shard.rows.first, shard.rows.size) for shard in found] == [
        (0, 0, 3), (1, 0, 3), (2, 0, 3), (3, 0, 3),
        (0, 3, 2), (1, 5, 2), (2, 3, 2), (3, 5, 2),
        (0, 7, 2), (1, 9, 2), (2, 11, 1), (3, 12, 0),
    ]  # fmt: skip
    assert TIERS.row_parts("t") == 4
    assert TIERS.placements["t"].ordered
    all_copied = TIERS.placed("t", "row_tiers", range(4), copied_rows=12, host_rows=0).shards(spec(12))
    assert [(shard.rank, shard.rows) for shard in all_copied] == [(rank, Span(0, 12)) for rank in range(4)]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"copied_rows": None}, "None rows copied"),
        ({"host_rows": -1}, "-1 to every host"),
        ({"fast_rows": 2}, "2 fast rows"),
        ({"ranks": [0, 1, 3]}, r"names the ranks \[0, 1, 3\] of 4"),
        ({"sharding": "row_wise"}, "has tiers of rows, but is row_wise"),
    ],
)
def test_damaged_tiers_are_refused(changed: dict[str, Any], problem: str) -> None:
    values = TIERS.to_json()
    assert Plan.from_json(values) == TIERS
    values["placements"]["t"] |= changed
    with pytest.raises(ConfigError, match=problem):
        Plan.from_json(values)


def test_rows_of_each_tier_are_dealt_round_robin() -> None:
    """Ranks of a host share the first tiers, in ranges of two rows (the last of the first tier has one)."""
    assert tier_positions(12, 3, 4, local_size=2, world_size=4).tolist() == [0, 2, 1, 3, 5, 4, 6, 7, 9, 11, 8, 10]
    assert tier_positions(4, 0, 0, local_size=2, world_size=2).tolist() == round_robin_positions(4, 2).tolist()
