"""The pools and baselines of the benchmark ``recshard``, and a plan evaluated on a log that it was not made from."""

from __future__ import annotations

import numpy as np
import pytest

from bench.micro.recshard import BASELINES, DEVICES, Pool, by_cost, measured, pool
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.row_order import frequency_ranks
from ziggurat.planning.plan_estimate import predict
from ziggurat.planning.problem import Problem


@pytest.fixture(scope="module")
def small() -> Pool:
    return pool(0, 16, 5e3)


def test_pools_repeat_and_their_logs_differ(small: Pool) -> None:
    again = pool(0, 16, 5e3)
    assert again.tables == small.tables
    for name, table in small.log.tables.items():
        assert np.array_equal(again.log.tables[name].accesses, table.accesses)
        assert not np.array_equal(small.other.tables[name].accesses, table.accesses)


@pytest.mark.parametrize("name", BASELINES)
def test_baselines_keep_whole_tables_within_the_ratio(small: Pool, name: str) -> None:
    problem, _ = small.problems(4)
    found = by_cost(problem, BASELINES[name], 4)
    rows = {table.name: table.rows for table in small.tables}
    assert all(placement.fast_rows in (0, rows[t]) for t, placement in found.placements.items())
    fast = sum(4 * 65 * rows[t] for t, placement in found.placements.items() if placement.fast_rows)
    assert 0 < fast <= sum(4 * 65 * each for each in rows.values()) / 4


def test_the_next_log_is_looked_up_in_the_order_of_the_first(small: Pool) -> None:
    problem, judge = small.problems(4)
    placements = {table.name: Placement("table_wise", (0,), table.rows // 10) for table in small.tables}
    plan = Plan(DEVICES, placements, DEVICES)
    slow = total = 0
    for table in small.tables:
        ranks = frequency_ranks(small.log.tables[table.name].accesses, table.rows)
        counts = small.other.tables[table.name].accesses
        slow, total = slow + int(counts[ranks >= table.rows // 10].sum()), total + int(counts.sum())
    assert predict(judge, plan).slow_share == pytest.approx(slow / total)
    own = Problem(small.tables, problem.topology, small.other, problem.batch_size, reserve=0)
    assert predict(own, plan).slow_share < slow / total  # in the order of its own counts


def test_recshard_is_evaluated_together_with_the_baselines(small: Pool) -> None:
    found = measured(small, 4, 0)
    assert found.log.keys() == found.next.keys() == {*BASELINES, "recshard"}
    assert found.log["recshard"].slowest == min(each.slowest for each in found.log.values())
