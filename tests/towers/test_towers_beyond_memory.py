"""Towers whose tables memory cannot hold train, on two hosts, what tables in memory do, to the bit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks
from tests.training.test_offloaded_run import STEPS, large_values, write_large_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ZigguratError
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log

RANKS, LOCAL, MIDDLE = 4, 2, 20


def experiment(folder: Path, memory: str | None) -> Experiment:
    """Returns a config with a table on one rank of the first host, and one split over both ranks of the second."""
    values = large_values(folder)
    values["features"][2]["pooling"] = "sum"
    values["model"] = {"name": "dlrm", "top": {"hidden": [16]}}
    values["towers"] = {
        "partition": {"name": "given", "towers": [["user"], ["item", "history"]]},
        "module": {"name": "dlrm", "flat": 1, "each": 1, "width": 6},
    }
    values["parallel"] = {"embeddings": {"name": "tower_transform"}}
    planning: dict[str, Any] = {"tables": {"item": {"sharding": "table_row_wise"}}}
    if memory is not None:
        planning["beyond_memory"] = {"memory": memory}
    values["planning"] = planning
    values["training"]["device"] = "cpu"
    return parse_config(Experiment, values)


def trained(rank: int, folder: Path, name: str, memory: str | None, *stops: int | None) -> dict[str, Any]:
    """Trains up to each of these steps; returns the figures of the end."""
    os.environ["LOCAL_WORLD_SIZE"] = str(LOCAL)
    figures: dict[str, Any] = {}
    for stop_after in stops:
        wanted = experiment(folder, memory)
        outcome = api.train(wanted, folder / name, prepared=folder / "prepared", stop_after=stop_after)
        figures = {} if outcome.results is None else outcome.results["figures"]
    return figures


def refused(rank: int, folder: Path) -> str:
    os.environ["LOCAL_WORLD_SIZE"] = str(LOCAL)
    with pytest.raises(ZigguratError) as caught:
        api.train(experiment(folder, "3kB"), folder / "refused", prepared=folder / "prepared")
    return str(caught.value)


def test_tables_on_a_disk_equal_tables_in_memory(tmp_path: Path) -> None:
    write_large_log(tmp_path / "log.csv")
    inside = run_ranks(RANKS, trained, tmp_path, "inside", None, MIDDLE, None)
    offloaded = run_ranks(RANKS, trained, tmp_path, "offloaded", "40kB", MIDDLE, None)
    assert inside[0]
    assert inside == offloaded
    assert_same_bits(tensors(tmp_path / "inside", STEPS), tensors(tmp_path / "offloaded", STEPS))
    plan = api.load_run(tmp_path / "offloaded").plan
    assert plan is not None
    placed = plan["placements"]
    assert placed["user"]["ranks"] in ([0], [1])
    assert (placed["item"]["sharding"], placed["item"]["ranks"]) == ("table_row_wise", [2, 3])
    assert placed["user"]["slots"]
    assert placed["item"]["slots"]
    moved = [
        each for each in read_metrics_log(tmp_path / "offloaded" / "metrics.jsonl") if each["split"] == "beyond_memory"
    ]
    assert moved
    assert sum(each["reads"] for each in moved) > 0
    for said in run_ranks(RANKS, refused, tmp_path):
        assert "planning.beyond_memory.memory: rank" in said
