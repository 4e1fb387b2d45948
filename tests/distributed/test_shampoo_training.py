"""Runs with Shampoo for the dense part: any data parallelism, stopped, and resumed on other numbers of ranks."""

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
    """Returns the dense part and its optimizer states at the end of a run."""
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


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Returns the largest difference of a tensor of the dense part."""
    assert ours.keys() == theirs.keys()
    return max((ours[key] - each).abs().max().item() for key, each in theirs.items() if key.startswith("dense/"))


def test_two_ranks_equal_one(pair: dict[str, Tensor], alone: dict[str, Tensor]) -> None:
    """Except for gradient sums in another order, whose effect the roots amplify."""
    assert any(key.endswith("/root_0") for key in alone)
    assert largest_difference(pair, alone) < 1e-3


@pytest.mark.parametrize("dense", [{"name": "fsdp"}, {"name": "hsdp", "shard_size": 1}], ids=lambda each: each["name"])
def test_sharded_parameters_equal_replicated_ones_bit_for_bit(
    dense: dict[str, Any], folder: Path, pair: dict[str, Tensor]
) -> None:
    found = run_ranks(2, trained, folder, dense["name"], dense)[0]
    assert found.keys() == pair.keys()
    assert all(torch.equal(found[key], each) for key, each in pair.items())


def test_resuming_between_roots_is_bit_identical(folder: Path, pair: dict[str, Tensor]) -> None:
    """Stops at step 16, while roots of step 15 are pending."""
    run_ranks(2, trained, folder, "stopped", {"name": "ddp"}, 16)
    found = run_ranks(2, trained, folder, "stopped", {"name": "ddp"})[0]
    assert all(torch.equal(found[key], each) for key, each in pair.items())


def test_other_numbers_of_ranks_resume(folder: Path, alone: dict[str, Tensor]) -> None:
    run_ranks(2, trained, folder, "moved", {"name": "ddp"}, 8)
    run_ranks(3, trained, folder, "moved", {"name": "ddp"}, 16)
    assert largest_difference(trained(0, folder, "moved", {"name": "ddp"}), alone) < 1e-3


def test_in_the_eigenbasis_sharded_parameters_resume_bit_for_bit(folder: Path) -> None:
    """Rounding rotates directions of equal second moments, so other numbers of ranks would diverge."""
    straight = run_ranks(2, trained, folder, "turned", {"name": "ddp"}, None, SHAMPOO)[0]
    assert any(key.endswith("/basis_0") for key in straight)
    run_ranks(2, trained, folder, "turned_stopped", {"name": "fsdp"}, 16, SHAMPOO)
    found = run_ranks(2, trained, folder, "turned_stopped", {"name": "fsdp"}, None, SHAMPOO)[0]
    assert all(torch.equal(found[key], each) for key, each in straight.items())
