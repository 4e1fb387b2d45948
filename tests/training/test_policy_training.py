"""A policy is trained with measurements in every round, stored after each round, and resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from ziggurat.core.progress import Silent
from ziggurat.planning.autoshard.learned import learned_costs, learned_policy
from ziggurat.planning.autoshard.pool import table_pool
from ziggurat.training.placement import kernel_benchmark as kernels
from ziggurat.training.placement import policy_training
from ziggurat.training.placement.kernel_benchmark import PLACEMENTS
from ziggurat.training.placement.policy_training import train_policy

CPU = torch.device("cpu")
POOL = table_pool(tables=12, spread=0.3)


class Interrupted(Silent):
    """Raises KeyboardInterrupt during the second round's measurements."""

    def advance(self, done: float, **figures: float | str) -> None:
        if 1.2 < done < 2:
            raise KeyboardInterrupt


def test_rounds_measure_and_learn_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "EPOCHS", 3)  # the quality of the policy is not tested here
    monkeypatch.setattr(kernels, "SETS", 12)
    monkeypatch.setattr(kernels, "MAX_BYTES", 3 * 10**8)  # gigabytes of fresh pages take seconds
    monkeypatch.setattr(policy_training, "MEASURED_TASKS", 2)
    monkeypatch.setattr(policy_training, "UPDATES", 2)
    with pytest.raises(KeyboardInterrupt):
        train_policy(tmp_path, CPU, 2, Interrupted(), POOL)
    assert learned_policy(tmp_path).origin["rounds"] == 1
    before = (tmp_path / PLACEMENTS).read_text().splitlines()
    assert [json.loads(line)["round"] for line in before] == sorted(json.loads(line)["round"] for line in before)
    policy = train_policy(tmp_path, CPU, 2, pool=POOL)
    lines = (tmp_path / PLACEMENTS).read_text().splitlines()
    assert lines[: len(before)] == before
    assert {json.loads(line)["round"] for line in lines} == {0, 1}
    assert all(json.loads(line)["seconds"] > 0 for line in lines)
    origin = learned_costs(tmp_path).network.origin
    assert origin["samples"] + origin["held_out"]["samples"] == 12 + len(lines)
    assert policy.origin["rounds"] == 2
    assert policy.origin["machine"] == origin["machine"]
    assert policy.origin["over_greedy"] > 0
    again = train_policy(tmp_path, CPU, 2, pool=POOL)
    assert again.origin == policy.origin
    assert len((tmp_path / PLACEMENTS).read_text().splitlines()) == len(lines)
