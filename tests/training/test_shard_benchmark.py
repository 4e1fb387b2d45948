"""The shards of a device are measured with ids that follow the frequencies of the training rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Shard, Span
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.embeddings.kernel_time import Bags
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.config import PlanningConfig, TopologyConfig
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import Rules
from ziggurat.training.placement import shard_benchmark
from ziggurat.training.placement.shard_benchmark import (
    ShardBenchmark,
    draw_ids,
    make_shard_benchmark,
    shard_bags,
    without_measuring,
)

CPU = torch.device("cpu")
ROWS = 1000


def spec(name: str, keys: int = 1, optimizer: str = "sgd") -> TableSpec:
    config: dict[str, Any] = {"name": optimizer, "lr": 0.1}
    return TableSpec(name, ROWS, 8, tuple(f"{name}.{key}" for key in range(keys)), "sum", config, 0.01)


def problem(*tables: TableSpec) -> Problem:
    """Returns a problem of two devices with 500 examples each and six ids per example; row i is accessed i times."""
    accesses = np.arange(ROWS, dtype=np.int64)
    counted = {table.name: TableStatistics(table.name, ROWS, accesses) for table in tables}
    rows = int(accesses.sum()) // 6
    topology = Topology(1, 2, "cpu", "cpu", 10**9, 1e10, 1e10, 1e10)
    return Problem(tables, topology, DatasetStatistics({"train": rows}, {}, tables=counted), 500)


def shard(first: int, rows: int, columns: int = 8) -> Shard:
    return Shard(0, Span(first, rows), Span(0, columns))


def test_ids_follow_the_frequencies_of_the_training_rows() -> None:
    table = spec("t")
    bags = [shard_bags(table, shard(0, ROWS), *draw_ids(problem(table), table, step)) for step in range(20)]
    ids = np.concatenate([each.ids.numpy() for each in bags])
    assert len(ids) == pytest.approx(20 * 1000 * 6, rel=0.05)
    tenths = np.bincount(ids // 100, minlength=10) / len(ids)
    assert tenths == pytest.approx((2 * np.arange(10) + 1) / 100, abs=0.01)
    assert not (ids == 0).any()


def test_shards_of_a_table_share_the_same_ids() -> None:
    table = spec("t", keys=2)
    ids = draw_ids(problem(table), table, 0)
    complete = shard_bags(table, shard(0, ROWS), *ids)
    low, high = shard_bags(table, shard(0, 300), *ids), shard_bags(table, shard(300, 700, columns=4), *ids)
    assert len(complete.lengths) == 2 * 1000
    assert torch.equal(complete.lengths, low.lengths + high.lengths)
    assert sorted(complete.ids.tolist()) == sorted(low.ids.tolist() + (high.ids + 300).tolist())
    assert (high.rows, high.columns, high.keys) == (700, 4, 2)


def test_any_row_is_looked_up_in_a_table_without_statistics() -> None:
    table = spec("t")
    topology = Topology(1, 2, "cpu", "cpu", 10**9, 1e10, 1e10, 1e10)
    bags = shard_bags(table, shard(0, ROWS), *draw_ids(Problem((table,), topology, None, 500), table, 0))
    assert 0 <= int(bags.ids.min()) < 100 < 900 < int(bags.ids.max()) < ROWS


def test_ids_are_drawn_once_for_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Bags]] = []

    def record(steps: list[list[Bags]], *_: object) -> tuple[float]:
        seen.append([bags for step in steps for bags in step])
        return (1.0,)

    monkeypatch.setattr(shard_benchmark, "kernel_seconds", record)
    table, benchmark = spec("t"), ShardBenchmark(CPU)
    large, small = problem(table), replace(problem(table), batch_size=200)
    for each in (large, large, small):
        benchmark(each, ((table, shard(0, ROWS)),))
    first, again, fewer = seen
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(first, again, strict=True))
    assert [len(bags.lengths) for bags in first + fewer] == [1000, 1000, 400, 400]


def test_tables_of_several_keys_and_optimizers_are_measured() -> None:
    tables = spec("a"), spec("b", keys=3), spec("c", optimizer="adagrad"), spec("d", optimizer="rowwise_adagrad")
    parts = tuple((table, shard(0, ROWS)) for table in tables)
    assert 0 < ShardBenchmark(CPU)(problem(*tables), parts) < 10


def test_an_optimizer_without_a_kernel_is_refused() -> None:
    table = spec("t", optimizer="adam")
    with pytest.raises(ConfigError, match="refine_s: table 't' is trained by adam, and only the kernels of sgd"):
        ShardBenchmark(CPU)(problem(table), ((table, shard(0, ROWS)),))


@pytest.mark.parametrize(
    ("planner", "device", "made"),
    [
        (AutoShard.Config(refine_s=1), "local", True),
        (AutoShard.Config(), "local", False),
        (AutoShard.Config(refine_s=1), "h100", False),
        (Rules.Config(), "local", False),
    ],
)
def test_only_a_planner_that_measures_and_plans_for_this_machine_gets_a_benchmark(
    planner: Any, device: Any, made: bool
) -> None:
    config = PlanningConfig(planner=planner, topology=TopologyConfig(device=device))
    assert (make_shard_benchmark(config, "cpu") is not None) == made
    assert make_shard_benchmark(without_measuring(config), "cpu") is None
    assert without_measuring(config).planner.name == planner.name
