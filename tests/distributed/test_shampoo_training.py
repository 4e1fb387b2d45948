"""Runs whose dense part Shampoo trains: spread in any way, stopped, and gone on with by other numbers of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import run_ranks
from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

STEPS = 24
SHAMPOO: dict[str, Any] = {
    "name": "shampoo", "lr": 0.01, "precondition_frequency": 5, "late": 2,
    "max_preconditioner_dim": 16, "epsilon": 1e-4,
}  # fmt: skip
ROOTS = {**SHAMPOO, "form": "roots"}


def trained(
    rank: int,
    folder: Path,
    name: str,
    dense: dict[str, Any],
    stop_after: int | None = None,
    optimizer: dict[str, Any] = ROOTS,
) -> dict[str, Tensor]:
    """The dense part at the end of a run, and its optimizer's states."""
    del rank
    values = config_values(folder)
    values["optimizer"] = optimizer
    values["parallel"] = {"dense": dense}
    values["planning"] = {"planner": {"replicate_up_to": 1}, "tables": {"item": {"sharding": "row_wise"}}}
    values["training"].update(max_steps=STEPS, epochs=50, evaluate_every=12, batch_size=96, device="cpu")
    run = folder / name
    outcome = api.train(parse_config(Experiment, values), run, prepared=folder / "prepared", stop_after=stop_after)
    groups = outcome.run.checkpoints.load("last").groups
    return {f"{group}/{key}": each for group in ("dense", "dense_optimizer") for key, each in groups[group].items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shampoo")
    write_log(path / "log.csv")
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, Tensor]:
    return trained(0, folder, "alone", {"name": "ddp"})


@pytest.fixture(scope="module")
def pair(folder: Path, alone: dict[str, Tensor]) -> dict[str, Tensor]:
    return run_ranks(2, trained, folder, "pair", {"name": "ddp"})[0]


def off(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The greatest distance of a tensor of the dense part."""
    assert ours.keys() == theirs.keys()
    return max((ours[key] - each).abs().max().item() for key, each in theirs.items() if key.startswith("dense/"))


def test_two_ranks_come_to_what_one_does(pair: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
    """But for sums of gradients in another order, which roots carry on."""
    assert any(key.endswith("/root_0") for key in alone)
    assert off(pair, alone) < 1e-3


@pytest.mark.parametrize("dense", [{"name": "fsdp"}, {"name": "hsdp", "shard_size": 1}], ids=lambda each: each["name"])
def test_parts_come_to_the_bits_of_copies(dense: dict[str, Any], folder: Path, pair: dict[str, Tensor]) -> None:
    found = run_ranks(2, trained, folder, dense["name"], dense)[0]
    assert found.keys() == pair.keys()
    assert all(torch.equal(found[key], each) for key, each in pair.items())


def test_stopped_between_it_goes_on_bit_for_bit(folder: Path, pair: dict[str, Tensor]) -> None:
    """At step 16, with roots of step 15 on their way."""
    run_ranks(2, trained, folder, "stopped", {"name": "ddp"}, 16)
    found = run_ranks(2, trained, folder, "stopped", {"name": "ddp"})[0]
    assert all(torch.equal(found[key], each) for key, each in pair.items())


def test_other_numbers_of_ranks_go_on(folder: Path, alone: dict[str, Tensor]) -> None:
    run_ranks(2, trained, folder, "moved", {"name": "ddp"}, 8)
    run_ranks(3, trained, folder, "moved", {"name": "ddp"}, 16)
    assert off(trained(0, folder, "moved", {"name": "ddp"}), alone) < 1e-3


def test_in_the_eigenbasis_parts_go_on_with_the_bits_of_copies(folder: Path) -> None:
    """Directions of equal second moments are turned by last bits: other numbers of ranks go other ways there."""
    straight = run_ranks(2, trained, folder, "turned", {"name": "ddp"}, None, SHAMPOO)[0]
    assert any(key.endswith("/basis_0") for key in straight)
    run_ranks(2, trained, folder, "turned_stopped", {"name": "fsdp"}, 16, SHAMPOO)
    found = run_ranks(2, trained, folder, "turned_stopped", {"name": "fsdp"}, None, SHAMPOO)[0]
    assert all(torch.equal(found[key], each) for key, each in straight.items())
