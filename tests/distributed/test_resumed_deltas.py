"""Resuming from a delta equals training without a stop: bit for bit, or up to the order of sums on other ranks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.distributed.ranks import run_ranks
from tests.training.test_offloaded_run import STEPS, large_values, write_large_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.config import parse_config
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

TABLES = {"item": {"sharding": "row_wise"}, "user": {"sharding": "table_wise"}}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    write_large_log(tmp_path / "log.csv")
    values = large_values(tmp_path)
    values["planning"] = {"planner": {"replicate_up_to": 1}, "tables": TABLES}
    values["training"] |= {"device": "cpu", "save_every": 5, "keep": 99}
    values["checkpoints"] = {"policy": "consecutive"}
    return parse_config(Experiment, values)


def train(rank: int, folder: Path, run: str, wanted: Experiment, stop_after: int | None) -> int:
    return api.train(wanted, folder / run, prepared=folder / "prepared", stop_after=stop_after).step


def delete_later_checkpoints(run: Path, step: int) -> None:
    """Deletes the checkpoints after ``step``, among them the full one of the stop, as after a kill."""
    folder = CheckpointFolder(run / "checkpoints")
    for each in folder.steps():
        if each > step:
            shutil.rmtree(run / "checkpoints" / f"step-{each:08d}")
    manifest = folder.manifest(step)
    assert manifest is not None
    assert manifest.kind == "delta"
    assert folder.last() == step


def resumed_tensors(folder: Path, wanted: Experiment, ranks: list[tuple[int, int | None]]) -> dict[str, Any]:
    """Returns the tensors of a run in stages of (ranks, last step), each resumed from the delta before that step."""
    for world_size, stop in ranks:
        run_ranks(world_size, train, folder, "parts", wanted, stop)
        if stop is not None:
            delete_later_checkpoints(folder / "parts", stop // 5 * 5)
    return tensors(folder / "parts", STEPS)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_resuming_from_a_delta_changes_nothing(world_size: int, experiment: Experiment, tmp_path: Path) -> None:
    run_ranks(world_size, train, tmp_path, "whole", experiment, None)
    found = resumed_tensors(tmp_path, experiment, [(world_size, 23), (world_size, None)])
    assert_same_bits(tensors(tmp_path / "whole", STEPS), found)


def test_resuming_on_fewer_ranks_equals_one_rank(experiment: Experiment, tmp_path: Path) -> None:
    """Up to the order of sums, whose effect grows over forty steps: 1e-4 for values around .1."""
    run_ranks(1, train, tmp_path, "whole", experiment, None)
    found = resumed_tensors(tmp_path, experiment, [(4, 13), (2, 28), (1, None)])
    expected = tensors(tmp_path / "whole", STEPS)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=1e-4, msg=name)
