"""The pools of the benchmark ``balance``: reproducible, long-tailed, and in some cases dominated by one table."""

from __future__ import annotations

import pytest

from bench.micro.balance import DEVICES, METHODS, Pool, pool


def test_pools_repeat_and_have_long_tails() -> None:
    pools = [pool(seed, 1e4) for seed in range(12)]
    assert pools[:2] == [pool(seed, 1e4) for seed in range(2)]
    assert [each.devices for each in pools] == [DEVICES[seed % len(DEVICES)] for seed in range(12)]
    for each in pools:
        assert 30 <= len(each.costs) <= 200
        falling = sorted(each.costs, reverse=True)
        tenth = len(falling) // 10
        assert sum(falling[:tenth]) > 0.25 * sum(falling)
        assert min(falling) > 0


def test_a_dominating_table_is_the_bound() -> None:
    assert Pool((8.0, 1.0, 1.0), 2).dominated  # 8 on one device, 2 on the other
    assert Pool((3.0, 3.0, 3.0), 2).dominated  # two tables share a device
    assert not Pool((2.0, 2.0, 1.0, 1.0), 2).dominated
    assert Pool((8.0, 1.0, 1.0), 2).bound == 8.0


@pytest.mark.parametrize("method", METHODS)
def test_excess_is_counted_from_the_bound(method: str) -> None:
    assert Pool((8.0, 1.0, 1.0), 2).excess(method) == 0.0
    found = Pool((8.0, 7.0, 6.0, 5.0, 4.0), 2).excess(method)
    assert found == pytest.approx({"lpt": 100 * 2 / 15, "ldm": 100 / 15}.get(method, 0.0))
