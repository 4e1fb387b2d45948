"""Ranks that warm-start from another run have, under any plan, exactly the state of a single process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import run_ranks
from tests.distributed.test_training import ORDERED
from tests.training.conftest import config_values, write_log
from tests.training.test_warm_start import rewrite
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.plan import Plan
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.warm_start.load import read_warm_start

TABLES = ("user", "item", "tags")
PLANS: dict[str, dict[str, Any]] = {
    "parts": {
        "planning": {
            "planner": {"replicate_up_to": 1},
            "tables": {"user": {"sharding": "column_wise"}, "item": {"sharding": "row_wise"}},
        }
    },
    "ordered": {"planning": ORDERED},
    "replicated_fsdp": {
        "planning": {"tables": {name: {"sharding": "data_parallel"} for name in TABLES}},
        "parallel.dense": {"name": "fsdp"},
    },
}


def experiment(folder: Path, changes: dict[str, Any]) -> Experiment:
    values = config_values(folder)
    values["training"].update(max_steps=12, evaluate_every=6, batch_size=96, device="cpu")
    for path, value in changes.items():
        set_by_path(values, path, value)
    return parse_config(Experiment, values)


def started_state(
    rank: int, folder: Path, place: str, plans: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Tensor]]:
    """Returns plan -> the initial state of a run that warm-starts from ``old``, without random states."""
    start = {"training.warm_start": {"run": str(folder / "old"), "checkpoint": "last", "optimizer": True}}
    found: dict[str, dict[str, Tensor]] = {}
    for name, plan in plans.items():
        config = experiment(folder / "new", {**start, **plan})
        run = api.train(config, folder / place / name, prepared=folder / "prepared-new", stop_after=0).run
        groups = run.checkpoints.load("last").groups
        found[name] = {f"{g}/{n}": tensor for g in groups if g != "random" for n, tensor in groups[g].items()}
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates ``old``, a run on a log, and another log in ``new``."""
    path = tmp_path_factory.mktemp("warm")
    for name in ("old-log", "new"):
        (path / name).mkdir()
        write_log(path / name / "log.csv")
    rewrite(path / "new/log.csv")
    api.train(experiment(path / "old-log", {}), path / "old", prepared=path / "prepared-old")
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Tensor]:
    return started_state(0, folder, "alone", {"alone": {}})["alone"]


@pytest.fixture(scope="module")
def pair(folder: Path, alone: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    return run_ranks(2, started_state, folder, "pair", PLANS)[0]


@pytest.mark.parametrize("name", PLANS)
def test_two_ranks_start_like_one(
    folder: Path, name: str, pair: dict[str, dict[str, Tensor]], alone: dict[str, Tensor]
) -> None:
    assert pair[name].keys() == alone.keys()
    for key, tensor in alone.items():
        assert torch.equal(pair[name][key], tensor), key
    assert float(alone["table_optimizer/item/sum"].sum()) > 0
    records = [read_warm_start(api.load_run(folder / run)) for run in ("alone/alone", f"pair/{name}")]
    assert records[0] is not None
    assert records[0] == records[1]
    plan = Plan.from_json(json.loads((folder / "pair" / name / "plan.json").read_text(encoding="utf-8")))
    kinds = {table: placement.sharding for table, placement in plan.placements.items()}
    expected = {"parts": ["column_wise", "row_wise"], "replicated_fsdp": ["data_parallel"] * 2}
    assert [kinds["user"], kinds["item"]] == expected.get(name, [kinds["user"], kinds["item"]])
    assert any(each.fast_rows for each in plan.placements.values()) == (name == "ordered")
    assert records[0].tables["user"]["taken"] < records[0].tables["user"]["rows"]


def refused(rank: int, folder: Path) -> str:
    start = {"training.warm_start": {"run": str(folder / "old")}, "embeddings.tables": {"user": {"dim": 4}}}
    try:
        api.train(experiment(folder / "new", start), folder / "refused", prepared=folder / "prepared-new", stop_after=0)
    except ValueError as error:
        return str(error)
    return "nothing"


def test_every_rank_raises_errors_of_a_warm_start(folder: Path) -> None:
    first, second = run_ranks(2, refused, folder)
    assert "table user: 8 floats there, 4 floats here" in first
    assert "rank 1: rank 0 failed with ConfigError" in second
