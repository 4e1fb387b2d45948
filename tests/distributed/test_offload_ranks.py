"""Two ranks with offloaded tables train exactly like two ranks with tables in memory, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks
from tests.training.test_offloaded_run import STEPS, large_values, write_large_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.config import parse_config
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log

TABLES = {"item": {"sharding": "row_wise"}, "user": {"sharding": "table_wise", "ranks": [1]}}


def experiment(folder: Path, memory: str | None, optimizer: str, pipeline: bool = True) -> Experiment:
    values = large_values(folder)
    values["embeddings"]["optimizer"] = {"name": optimizer, "lr": 0.1}
    values["planning"] = {"planner": {"replicate_up_to": 1}, "tables": TABLES}
    values["parallel"] = {"pipeline": pipeline}
    values["training"]["device"] = "cpu"
    if memory is not None:
        values["planning"]["beyond_memory"] = {"memory": memory}
    return parse_config(Experiment, values)


def train(rank: int, folder: Path, run: str, wanted: Experiment, stop_after: int | None) -> dict[str, Any] | None:
    outcome = api.train(wanted, folder / run, prepared=folder / "prepared", stop_after=stop_after)
    return outcome.results and outcome.results["figures"]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
def test_two_ranks_with_offloaded_tables_equal_two_in_memory(optimizer: str, tmp_path: Path) -> None:
    write_large_log(tmp_path / "log.csv")
    pipeline = optimizer != "sgd"
    inside, beyond = (experiment(tmp_path, memory, optimizer, pipeline) for memory in (None, "52kB"))
    expected = run_ranks(2, train, tmp_path, "inside", inside, None)[0]
    found = run_ranks(2, train, tmp_path, "beyond", beyond, None)[0]
    assert found == expected
    assert_same_bits(tensors(tmp_path / "inside", STEPS), tensors(tmp_path / "beyond", STEPS))
    moved = [
        each for each in read_metrics_log(tmp_path / "beyond" / "metrics.jsonl") if each["split"] == "beyond_memory"
    ]
    assert sum(record["reads"] for record in moved) > 0
    assert not [*(tmp_path / "beyond").glob("*rows*")]


def test_a_rank_without_offloaded_tables_trains_with_one_that_has_some(tmp_path: Path) -> None:
    write_large_log(tmp_path / "log.csv")
    whole = {name: {"sharding": "table_wise", "ranks": [rank]} for rank, name in enumerate(("item", "user"))}
    runs = {name: experiment(tmp_path, memory, "adagrad") for name, memory in (("inside", None), ("beyond", "110kB"))}
    for name, wanted in runs.items():
        values = wanted.model_dump(mode="json")
        values["planning"]["tables"] = whole
        runs[name] = parse_config(Experiment, values)
    figures = [run_ranks(2, train, tmp_path, name, wanted, None)[0] for name, wanted in runs.items()]
    assert figures[0] == figures[1]
    assert_same_bits(tensors(tmp_path / "inside", STEPS), tensors(tmp_path / "beyond", STEPS))
    plan = api.load_run(tmp_path / "beyond").plan
    assert plan is not None
    assert [plan["placements"][name]["slots"] is None for name in ("item", "user")] == [False, True]


@pytest.mark.parametrize("bandwidth", ["2MB/s", None])
def test_recshard_uses_memory_and_disk_as_two_tiers(bandwidth: str | None, tmp_path: Path) -> None:
    """Training equals that of ranks that hold the same tables in memory."""
    write_large_log(tmp_path / "log.csv")
    wanted = (experiment(tmp_path, memory, "rowwise_adagrad") for memory in ("52kB", None))
    beyond, inside = (each.model_dump(mode="json") for each in wanted)
    beyond["planning"]["beyond_memory"]["bandwidth"] = bandwidth  # None: measured
    beyond["planning"].update(planner={"name": "recshard"}, tables={})
    found = run_ranks(2, train, tmp_path, "beyond", parse_config(Experiment, beyond), None)[0]
    plan = api.load_run(tmp_path / "beyond").plan
    assert plan is not None
    assert plan["notes"][0].startswith("recshard: ")
    assert any(placement["slots"] for placement in plan["placements"].values())
    assert [placement["fast_rows"] for placement in plan["placements"].values()] == [None, None]
    inside["planning"]["tables"] = {
        name: {"sharding": placement["sharding"], "ranks": placement["ranks"]}
        for name, placement in plan["placements"].items()
    }
    assert run_ranks(2, train, tmp_path, "inside", parse_config(Experiment, inside), None)[0] == found
    assert_same_bits(tensors(tmp_path / "inside", STEPS), tensors(tmp_path / "beyond", STEPS))


def test_runs_resume_in_memory_and_offloaded(tmp_path: Path) -> None:
    write_large_log(tmp_path / "log.csv")
    inside, beyond = (experiment(tmp_path, memory, "adagrad") for memory in (None, "52kB"))
    run_ranks(2, train, tmp_path, "whole", inside, None)
    for wanted, stop in ((beyond, 11), (inside, 23), (beyond, None)):
        run_ranks(2, train, tmp_path, "parts", wanted, stop)
    assert_same_bits(tensors(tmp_path / "whole", STEPS), tensors(tmp_path / "parts", STEPS))
