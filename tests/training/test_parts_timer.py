"""What a device would hold is run for real, on ids as training has them."""

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
from ziggurat.training.placement import shard_benchmark as module
from ziggurat.training.placement.shard_benchmark import ShardBenchmark, asked, drawn, parts_timer, unmeasured

CPU = torch.device("cpu")
ROWS = 1000


def spec(name: str, keys: int = 1, optimizer: str = "sgd") -> TableSpec:
    rule: dict[str, Any] = {"name": optimizer, "lr": 0.1}
    return TableSpec(name, ROWS, 8, tuple(f"{name}.{key}" for key in range(keys)), "sum", rule, 0.01)


def problem(*tables: TableSpec) -> Problem:
    """Two devices of 500 examples each; every row is looked up as often as its number says, six ids an example."""
    accesses = np.arange(ROWS, dtype=np.int64)
    counted = {table.name: TableStatistics(table.name, ROWS, accesses) for table in tables}
    rows = int(accesses.sum()) // 6
    topology = Topology(1, 2, "cpu", "cpu", 10**9, 1e10, 1e10, 1e10)
    return Problem(tables, topology, DatasetStatistics({"train": rows}, {}, tables=counted), 500)


def shard(first: int, rows: int, columns: int = 8) -> Shard:
    return Shard(0, Span(first, rows), Span(0, columns))


def test_ids_are_as_often_as_training_looks_them_up() -> None:
    table = spec("t")
    bags = [asked(table, shard(0, ROWS), *drawn(problem(table), table, step)) for step in range(20)]
    ids = np.concatenate([each.ids.numpy() for each in bags])
    assert len(ids) == pytest.approx(20 * 1000 * 6, rel=0.05)
    tenths = np.bincount(ids // 100, minlength=10) / len(ids)
    assert tenths == pytest.approx((2 * np.arange(10) + 1) / 100, abs=0.01)
    assert not (ids == 0).any()


def test_shards_of_a_table_are_asked_for_the_same_ids() -> None:
    table = spec("t", keys=2)
    given = problem(table)
    ids = drawn(given, table, 0)
    whole = asked(table, shard(0, ROWS), *ids)
    low, high = asked(table, shard(0, 300), *ids), asked(table, shard(300, 700, columns=4), *ids)
    assert len(whole.lengths) == 2 * 1000
    assert torch.equal(whole.lengths, low.lengths + high.lengths)
    assert sorted(whole.ids.tolist()) == sorted(low.ids.tolist() + (high.ids + 300).tolist())
    assert (high.rows, high.columns, high.keys) == (700, 4, 2)


def test_a_table_that_nothing_is_known_of_is_asked_for_any_row() -> None:
    table = spec("t")
    topology = Topology(1, 2, "cpu", "cpu", 10**9, 1e10, 1e10, 1e10)
    bags = asked(table, shard(0, ROWS), *drawn(Problem((table,), topology, None, 500), table, 0))
    assert 0 <= int(bags.ids.min()) < 100 < 900 < int(bags.ids.max()) < ROWS


def test_ids_are_drawn_once_for_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Bags]] = []

    def noted(steps: list[list[Bags]], *_: object) -> tuple[float]:
        seen.append([bags for step in steps for bags in step])
        return (1.0,)

    monkeypatch.setattr(module, "kernel_seconds", noted)
    table, timer = spec("t"), ShardBenchmark(CPU)
    given, smaller = problem(table), replace(problem(table), batch_size=200)
    for each in (given, given, smaller):
        timer(each, ((table, shard(0, ROWS)),))
    first, again, fewer = seen
    assert all(torch.equal(a.ids, b.ids) for a, b in zip(first, again, strict=True))
    assert [len(bags.lengths) for bags in first + fewer] == [1000, 1000, 400, 400]


def test_tables_of_several_keys_and_optimizers_are_run() -> None:
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
def test_only_a_planner_that_asks_for_it_and_plans_for_this_machine_gets_one(
    planner: Any, device: Any, made: bool
) -> None:
    config = PlanningConfig(planner=planner, topology=TopologyConfig(device=device))
    assert (parts_timer(config, "cpu") is not None) == made
    assert parts_timer(unmeasured(config), "cpu") is None
    assert unmeasured(config).planner.name == planner.name
