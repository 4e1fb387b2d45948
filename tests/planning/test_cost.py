"""The cost model, compared with figures computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from planning_kit import OPTIMIZERS, statistics, table, topology

from ziggurat.core.plan import Placement, Plan, Shard, Sharding, Span
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.cost import ShardCost, client_bytes, shard_cost, state_bytes
from ziggurat.planning.problem import Problem
from ziggurat.planning.usage import Usage

BATCH = 100
BAG = table("tags", 1000, 16, features=("tags", "liked_tags"))
USAGE = Usage(5.0, None, 1000)  # two keys, five ids an example over both


def costs(sharding: Sharding, ranks: tuple[int, ...], where: Topology, spec: TableSpec = BAG) -> list[ShardCost]:
    plan = Plan(where.world_size, {spec.name: Placement(sharding, ranks)}, where.devices)
    return [shard_cost(spec, shard, sharding, USAGE, where, BATCH) for shard in plan.shards(spec)]


def traffic(found: list[ShardCost]) -> list[tuple[float, float]]:
    return [(cost.intra_bytes, cost.inter_bytes) for cost in found]


def test_table_wise_traffic() -> None:
    """For each example, each other rank sends 5 ids of 8 bytes and 2 lengths of 4, receives 2 vectors of 64 bytes, and
    sends 2 gradients back: 48 + 256 = 304 bytes. There are 3 such ranks on the host, 4 on the other."""
    assert traffic(costs("table_wise", (1,), topology(2, 4))) == [(3 * 30_400, 4 * 30_400)]
    assert traffic(costs("table_wise", (0,), topology(1, 1))) == [(0, 0)]


def test_row_wise_traffic() -> None:
    """On every rank: a quarter of the ids, all lengths, and vectors of partial sums: 10 + 8 + 256 = 274 bytes."""
    assert traffic(costs("row_wise", (0, 1, 2, 3), topology(2, 2))) == [(27_400, 2 * 27_400)] * 4


def test_column_wise_traffic() -> None:
    """Each half gets all ids, and vectors of 32 bytes: 48 + 128 = 176 bytes."""
    assert traffic(costs("column_wise", (0, 3), topology(2, 2))) == [(17_600, 2 * 17_600)] * 2


def test_table_row_wise_traffic() -> None:
    """There are three hosts of two devices. Half of the ids and all lengths (28 bytes) come from one rank of the host
    and four elsewhere. Partial sums of all six ranks' examples are reduced within the host, 3 · 256 bytes for its other
    rank; two vectors and gradients an example, 256 bytes, cross to each other host."""
    assert (
        traffic(costs("table_row_wise", (2, 3), topology(3, 2)))
        == [(100 * (28 + 3 * 256), 100 * (4 * 28 + 2 * 256))] * 2
    )


def test_grid_traffic() -> None:
    """The same as table-row-wise on both hosts, with half of the columns each: 128 bytes."""
    expected = (100 * (28 + 2 * 128), 100 * (2 * 28 + 128))
    assert traffic(costs("grid", (0, 1, 2, 3), topology(2, 2))) == [expected] * 4


def test_row_wise_crosses_less_when_it_is_within_a_host() -> None:
    where = topology(4, 4)
    flat = sum(cost.inter_bytes for cost in costs("row_wise", tuple(range(16)), where))
    nested = sum(cost.inter_bytes for cost in costs("table_row_wise", (4, 5, 6, 7), where))
    assert nested < flat / 8


def test_data_parallel_traffic() -> None:
    """In a ring of four, 2 · 3/4 of 64,000 bytes of gradient and 1,000 flags of four bytes leave each rank; ranks 1 and
    3 are the last of their hosts."""
    sent = 1.5 * 68_000
    assert traffic(costs("data_parallel", (0, 1, 2, 3), topology(2, 2))) == [(sent, 0), (0, sent)] * 2
    assert traffic(costs("data_parallel", (0, 1), topology(1, 2))) == [(68_000, 0)] * 2
    assert traffic(costs("data_parallel", (0, 1), topology(2, 1))) == [(0, 68_000)] * 2


def test_a_ring_is_as_slow_as_its_slowest_link_on_every_rank() -> None:
    seconds = [cost.seconds for cost in costs("data_parallel", (0, 1, 2, 3), topology(2, 2))]
    assert seconds == pytest.approx([seconds[0]] * 4)
    assert seconds[0] > 1.5 * 68_000 / 4e9  # 4 GB/s between hosts


def test_seconds_are_bytes_over_bandwidths() -> None:
    """304 bytes an example are exchanged with each rank; four devices share their host's 4 GB/s."""
    (cost,) = costs("table_wise", (1,), topology(2, 4))
    assert cost.seconds == pytest.approx(cost.memory_traffic / 1e11 + 3 * 30_400 / 1e10 + 4 * 30_400 / 1e9)


def test_memory_traffic_of_known_frequencies() -> None:
    """Rows are looked up 3 : 1 : 0, with one id an example and two ranks of two examples: 4 ids reach the table,
    8 + 2 · 32 bytes each. The expected number of touched rows is (1 − ¼⁴) + (1 − ¾⁴); each is read and
    written, 32 bytes and 4 of row-wise Adagrad."""
    spec = table("t", 3, 8, "rowwise_adagrad")
    usage = Usage.of(spec, statistics(4, {"t": [3, 1, 0]}))
    assert usage.ids_per_row == 1.0
    cost = shard_cost(spec, Shard(0, Span(0, 3), Span(0, 8)), "table_wise", usage, topology(1, 2), 2)
    touched = (1 - 0.25**4) + (1 - 0.75**4)
    assert cost.memory_traffic == pytest.approx(4 * 72 + touched * 2 * 36)
    low, high = (
        shard_cost(spec, Shard(rank, Span(first, size), Span(0, 8)), "row_wise", usage, topology(1, 2), 2)
        for rank, first, size in ((0, 0, 2), (1, 2, 1))
    )
    assert low.memory_traffic == pytest.approx(cost.memory_traffic)
    assert high.memory_traffic == 0  # its row is never looked up


def test_a_replica_looks_up_its_own_examples_and_is_updated_by_all() -> None:
    spec = table("t", 3, 8)
    usage = Usage.of(spec, statistics(4, {"t": [3, 1, 0]}))
    cost = shard_cost(spec, Shard(1, Span(0, 3), Span(0, 8)), "data_parallel", usage, topology(1, 2), 2)
    touched = (1 - 0.25**4) + (1 - 0.75**4)
    assert cost.memory_traffic == pytest.approx(2 * 72 + touched * 2 * 32 + 20 * 24)
    every = table("t", 3, 8, "adam_all")
    cost = shard_cost(every, Shard(0, Span(0, 3), Span(0, 8)), "data_parallel", usage, topology(1, 1), 2)
    assert cost.memory_traffic == pytest.approx(2 * 72 + 3 * 2 * (32 + 64))


def test_buffers() -> None:
    """Two ranks have 100 examples each. The owner buffers ids, lengths, vectors and gradients of both ranks' examples,
    every rank those of its own examples. Table-row-wise also buffers the host's sums for each host. A replica buffers
    gradient and flags."""
    assert [cost.buffer_bytes for cost in costs("table_wise", (0,), topology(1, 2))] == [200 * (48 + 256)]
    assert client_bytes(BAG, USAGE, BATCH) == 100 * (48 + 256)
    nested = costs("table_row_wise", (0, 1), topology(2, 2))
    assert [cost.buffer_bytes for cost in nested] == [400 * (28 + 256) + 200 * 256] * 2
    assert [cost.buffer_bytes for cost in costs("data_parallel", (0, 1), topology(1, 2))] == [68_000] * 2
    assert [cost.buffer_bytes for cost in costs("data_parallel", (0,), topology(1, 1))] == [0]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [("sgd", 0), ("rowwise_adagrad", 4 * 250), ("adagrad", 4 * 4000), ("adam", 8 * 4000), ("adam_all", 8 * 4000)],
)
def test_kept_bytes(optimizer: str, expected: int) -> None:
    """A shard has a quarter of the rows: 250 rows of 16 floats."""
    spec = table("tags", 1000, 16, optimizer, features=("tags", "liked_tags"))
    for cost in costs("row_wise", (0, 1, 2, 3), topology(), spec):
        assert (cost.weight_bytes, cost.state_bytes) == (16_000, expected)
        assert cost.kept_bytes == 16_000 + expected + cost.buffer_bytes
    assert state_bytes(OPTIMIZERS[optimizer], 0, 16) == 0


def test_positions_count_as_keys() -> None:
    """A sequence of three positions has three vectors an example."""
    spec = table("item", 50, 8, features=("item", "seen"), positions={"seen": 3})
    usage = Usage(2.5, None, 50)
    assert client_bytes(spec, usage, 10) == 10 * (2.5 * 8 + 4 * 4 + 2 * 4 * 32)


def test_shares_and_distinct_rows() -> None:
    draw = np.random.default_rng(0)
    counts = draw.zipf(1.3, 40).clip(max=1000)
    spec = table("t", 40)
    usage = Usage.of(spec, statistics(int(counts.sum() // 2), {"t": counts.tolist()}))
    assert usage.ids_per_row == pytest.approx(2.0, rel=0.01)
    assert usage.share(Span(0, 40)) == 1.0
    assert usage.share(Span(10, 5)) == pytest.approx(counts[10:15].sum() / counts.sum())
    ids = draw.choice(40, (4000, 30), p=counts / counts.sum())
    seen = np.mean([len(np.unique(each[(each >= 5) & (each < 25)])) for each in ids])
    assert usage.distinct(30, Span(5, 20)) == pytest.approx(seen, rel=0.02)


def test_without_statistics_rows_are_looked_up_equally() -> None:
    usage = Usage.of(table("t", 10, features=("a", "b")), None)
    assert (usage.ids_per_row, usage.share(Span(0, 4))) == (2.0, 0.4)
    assert usage.distinct(3, Span(0, 10)) == pytest.approx(10 * (1 - 0.9**3))
    assert usage.distinct(3, Span(0, 0)) == 0
    one = Usage.of(table("t", 1), None)
    assert one.distinct(5, Span(0, 1)) == 1.0
    unused = Usage.of(table("t", 3), statistics(5, {"t": [0, 0, 0]}))
    assert (unused.ids_per_row, unused.distinct(0, Span(0, 3))) == (0.0, 0.0)
    assert not math.isnan(unused.share(Span(0, 1)))


def test_no_shard_of_one_row_table_costs_nan() -> None:
    """With fewer rows than ranks, some shards have no rows."""
    spec = table("t", 2)
    plan = Plan(4, {"t": Placement("row_wise", (0, 1, 2, 3))}, 4)
    usage: Any = Usage.of(spec, statistics(2, {"t": [2, 2]}))
    found = [shard_cost(spec, shard, "row_wise", usage, topology(), 10) for shard in plan.shards(spec)]
    assert [cost.weight_bytes for cost in found] == [64, 64, 0, 0]
    assert all(math.isfinite(cost.seconds) for cost in found)


@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "table_row_wise"])
@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad", "adagrad"])
def test_two_tiers_with_all_rows_fast_equal_one_memory(sharding: Sharding, optimizer: str) -> None:
    """If all rows are slow, the rows' part of the traffic runs at the slow bandwidth."""
    counts = np.random.default_rng(0).integers(0, 50, 301)
    spec = table("t", 301, 16, optimizer)
    where = topology(1, 4, slow_memory=1e9)
    problem = Problem((spec,), where, statistics(100, {"t": counts.tolist()}), BATCH)
    ranks = (1,) if sharding == "table_wise" else (0, 1, 2, 3)
    plans = {fast: Plan(4, {"t": Placement(sharding, ranks, fast)}, 4) for fast in (None, 301, 0, 40)}
    found = {fast: [cost for _, cost in problem.costs(spec, plan)] for fast, plan in plans.items()}
    total = {
        name: {fast: sum(getattr(cost, name) for cost in costs) for fast, costs in found.items()}
        for name in ("seconds", "memory_traffic", "slow_traffic", "lookups", "slow_lookups", "slow_bytes", "kept_bytes")
    }
    assert total["seconds"][301] == pytest.approx(total["seconds"][None])
    assert total["memory_traffic"][301] == pytest.approx(total["memory_traffic"][None])
    assert total["slow_bytes"][301] == total["slow_traffic"][301] == 0
    ids = 4 * BATCH * counts.sum() / 100
    row = {"sgd": 64, "rowwise_adagrad": 68, "adagrad": 128}[optimizer]
    assert total["memory_traffic"][0] == pytest.approx(ids * (8 + 64))  # ids and gradients
    moved = total["memory_traffic"][None] - total["memory_traffic"][0]
    assert total["slow_traffic"][0] == pytest.approx(moved)
    assert total["seconds"][0] - total["seconds"][None] == pytest.approx(moved * (1 / 1e9 - 1 / 1e11))
    assert total["slow_bytes"][0] == row * 301
    hot = np.sort(counts)[::-1][:40].sum() / counts.sum()
    assert total["lookups"][40] == pytest.approx(ids)
    assert 1 - total["slow_lookups"][40] / total["lookups"][40] == pytest.approx(hot)
    assert total["slow_bytes"][40] == row * 261
    assert total["kept_bytes"][None] - total["kept_bytes"][40] == row * 261


def test_an_access_curve_equals_the_counts() -> None:
    counts = np.random.default_rng(1).integers(0, 9, 100)
    usage = Usage(2.0, counts.astype(np.int64), 100)
    falling = np.sort(counts)[::-1]
    curve = AccessCurve.of(usage)
    shares = np.cumsum(falling) / counts.sum()
    for share in (0.0, 0.01, 0.3, 0.77, 1.0):
        expected = int(np.searchsorted(shares, share - 1e-12)) + 1 if share else 0
        assert curve.least_rows(share) == expected
    for span in (Span(0, 100), Span(10, 37), Span(99, 1), Span(5, 0)):
        assert curve.share(span) == pytest.approx(falling[span.slice].sum() / counts.sum())
        each = -np.expm1(500 * np.log1p(-falling[span.slice] / counts.sum()))
        assert curve.distinct(500, span) == pytest.approx(each.sum())
    halves = AccessCurve.of(usage, 2)
    assert halves.share(Span(50, 50)) == pytest.approx(falling[1::2].sum() / counts.sum())
    unknown = AccessCurve.of(Usage(2.0, None, 100))
    assert unknown.share(Span(7, 25)) == 0.25
    assert unknown.least_rows(0.5) == 50
