"""Rows of tiers on a disk: the run equals, to the bit, that whose rows are all in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import run_ranks
from tests.distributed.test_tiered_training import TIERED, tiered_values, train
from tests.training.test_offloaded_run import write_large_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.core.config import parse_config
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log

STEPS = 20


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Any]:
    write_large_log(tmp_path / "log.csv")
    found = tiered_values(tmp_path)
    found["training"] |= {"max_steps": STEPS, "evaluate_every": 15}
    return found


def test_rows_that_are_split_over_all_ranks_may_be_on_a_disk(values: dict[str, Any], tmp_path: Path) -> None:
    """Rows split over ranks up to step 5, then in tiers, of which a checkpoint is resumed at step 12.

    Both runs stop there: ranks that start anew may add gradients in another order, wherever their rows are.
    """
    experiments = {"inside": parse_config(Experiment, values)}
    values["planning"]["beyond_memory"] = {"memory": "33kB"}
    experiments["beyond"] = parse_config(Experiment, values)
    for run, experiment in experiments.items():
        run_ranks(4, train, tmp_path, run, experiment, 5, False)
        for stop_after in (12, None):
            run_ranks(4, train, tmp_path, run, experiment, stop_after, True)
    assert_same_bits(tensors(tmp_path / "inside", STEPS), tensors(tmp_path / "beyond", STEPS))
    plan = api.load_run(tmp_path / "beyond").plan
    assert plan is not None
    for name, placement in TIERED.placements.items():
        stored = plan["placements"][name]
        assert (stored["sharding"], stored["copied_rows"]) == ("row_tiers", placement.copied_rows)
        assert stored["slots"]
    moved = [
        each for each in read_metrics_log(tmp_path / "beyond" / "metrics.jsonl") if each["split"] == "beyond_memory"
    ]
    assert sum(each["reads"] for each in moved if each["step"] > 5) > 0
    assert sum(each["writes"] for each in moved if each["step"] > 5) > 0
