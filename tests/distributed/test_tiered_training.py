"""A run takes tiers of rows at a resume, and leaves them at another, as if it had always been on one rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import run_ranks
from tests.distributed.test_resumed_deltas import delete_later_checkpoints
from tests.training.test_offloaded_run import ITEMS, STEPS, USERS, large_values, write_large_log
from tests.training.test_train import tensors
from ziggurat.core.config import parse_config
from ziggurat.core.plan import Plan
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run_files import PLAN_FILE, ROW_ORDER_FILE, RunFiles

TIERED = (
    Plan(4, {}, 2)
    .placed("user", "row_tiers", range(4), copied_rows=20, host_rows=100)
    .placed("item", "row_tiers", range(4), copied_rows=50, host_rows=400)
)


def tiered_values(folder: Path) -> dict[str, Any]:
    """Returns the config of a run whose histories are looked up by position."""
    values = large_values(folder)
    values["features"][2]["pooling"] = {"name": "target_attention", "target": "item"}
    values["planning"] = {"tables": {"item": {"sharding": "row_wise"}}}
    values["training"] |= {"device": "cpu", "save_every": 5, "keep": 99}
    values["checkpoints"] = {"policy": "consecutive"}
    return values


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    write_large_log(tmp_path / "log.csv")
    return parse_config(Experiment, tiered_values(tmp_path))


def train(rank: int, folder: Path, run: str, wanted: Experiment, stop_after: int | None, tiers: bool) -> list[Any]:
    """Trains up to a step on ranks of two hosts; with ``tiers``, under another plan than before."""
    if tiers:
        os.environ["LOCAL_WORLD_SIZE"] = "2"
        if rank == 0:
            RunFiles.open(folder / run).write_json(PLAN_FILE, TIERED.to_json())
    return [api.train(wanted, folder / run, prepared=folder / "prepared", stop_after=stop_after).step]


def test_a_run_takes_and_leaves_tiers_of_rows(experiment: Experiment, tmp_path: Path) -> None:
    """Rows split over 4 ranks, in tiers, resumed from a delta, split over 2, on one. Up to the order of sums: 1e-4."""
    run_ranks(1, train, tmp_path, "whole", experiment, None, False)
    run = tmp_path / "parts"
    run_ranks(4, train, tmp_path, "parts", experiment, 8, False)
    assert not (run / ROW_ORDER_FILE).exists()
    run_ranks(4, train, tmp_path, "parts", experiment, 18, True)
    delete_later_checkpoints(run, 15)
    run_ranks(4, train, tmp_path, "parts", experiment, 28, True)
    assert (run / ROW_ORDER_FILE).exists()
    stored = RunFiles.open(run).read_json(PLAN_FILE)
    assert stored is not None
    assert Plan.from_json(stored).placements == TIERED.placements
    run_ranks(2, train, tmp_path, "parts", experiment, 34, False)
    left = api.load_run(run).plan
    assert left is not None
    assert {each["sharding"] for each in left["placements"].values()} == {"row_wise"}
    run_ranks(1, train, tmp_path, "parts", experiment, None, False)
    expected, found = tensors(tmp_path / "whole", STEPS), tensors(run, STEPS)
    assert found.keys() >= expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4, msg=name)
    records = [each for each in read_metrics_log(run / "metrics.jsonl") if each["split"] == "row_tiers"]
    assert [each["step"] for each in records] == [10, 15, 20, 25, 28]
    for each in records:
        for table, rows in (("user", USERS), ("item", ITEMS)):
            tiers = ("copied", "host", "split")
            for shares in ("share", "share_expected"):
                assert sum(each[f"{table}/{tier}_{shares}"] for tier in tiers) == pytest.approx(1)
            assert sum(each[f"{table}/{tier}_rows"] for tier in tiers) <= rows
            assert abs(each[f"{table}/copied_share"] - each[f"{table}/copied_share_expected"]) < 0.3
        sent = [name for name in each if name.endswith(("_in_host", "_between_hosts"))]
        assert sorted(sent) == [
            "copies_bytes_between_hosts",
            "copies_bytes_in_host",
            "host_rows_bytes_between_hosts",
            "host_rows_bytes_in_host",
            "split_rows_bytes_between_hosts",
            "split_rows_bytes_in_host",
        ]
        for name in sent:
            expected_bytes = each.get(f"{name}_expected", 0.0)
            few = 0.5 * expected_bytes <= each[name] <= 2 * expected_bytes  # of few rows, one rank's are not the mean's
            assert few, (name, each[name], expected_bytes)
