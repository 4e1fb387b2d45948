"""A policy is trained with measurements in every round, stored after each round, and resumed."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Silent
from ziggurat.planning.autoshard.learned import learned_costs, learned_policies, learned_policy, proposer_path
from ziggurat.planning.autoshard.policy import LR, Learner
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


def measure_little(monkeypatch: pytest.MonkeyPatch, *, tasks: int, updates: int) -> None:
    """Makes measurements and trainings short; the quality of the policy is not tested here."""
    monkeypatch.setattr(kernels, "EPOCHS", 3)
    monkeypatch.setattr(kernels, "SETS", 12)
    monkeypatch.setattr(kernels, "MAX_BYTES", 3 * 10**8)  # gigabytes of fresh pages take seconds
    monkeypatch.setattr(policy_training, "MEASURED_TASKS", tasks)
    monkeypatch.setattr(policy_training, "UPDATES", updates)


def test_rounds_measure_and_learn_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_little(monkeypatch, tasks=2, updates=2)
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


@pytest.mark.parametrize("proposers", [1, 2])
def test_each_round_is_a_cycle_of_the_rate_if_several_propose(
    proposers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_little(monkeypatch, tasks=1, updates=4)
    monkeypatch.setattr(policy_training, "CHOOSING_TASKS", 1)
    rates: list[float] = []

    def learned(learner: Learner, *_: object) -> float:
        rates.append(learner._optimizer.param_groups[0]["lr"])  # pyright: ignore[reportPrivateUsage]
        return 0.0

    monkeypatch.setattr(policy_training, "train_on_synthetic_tasks", learned)
    train_policy(tmp_path, CPU, 2, pool=POOL, proposers=proposers)
    cycle = [LR / 2 * (math.cos(math.pi * update / 4) + 1) for update in range(4)]
    assert rates == pytest.approx(([LR] * 4 if proposers == 1 else cycle) * 2)


def test_snapshots_of_rounds_propose_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_little(monkeypatch, tasks=1, updates=2)
    monkeypatch.setattr(policy_training, "CHOOSING_TASKS", 2)
    with pytest.raises(ConfigError, match="3 proposers of 2 rounds"):
        train_policy(tmp_path, CPU, 2, pool=POOL, proposers=3)
    last = train_policy(tmp_path, CPU, 2, pool=POOL, proposers=2)
    found = learned_policies(tmp_path, 2)
    assert {name: weight.tobytes() for name, weight in found[1].weights.items()} == {
        name: weight.tobytes() for name, weight in last.weights.items()
    }
    assert any((found[0].weights[name] != weight).any() for name, weight in found[1].weights.items())
    with pytest.raises(ConfigError, match=r"lacks proposer-3\.safetensors"):
        learned_policies(tmp_path, 3)
    for number in (3, 4):  # of a choice of more
        found[0].save(proposer_path(tmp_path, number))
    assert len(learned_policies(tmp_path, 4)) == 4
    train_policy(tmp_path, CPU, 2, pool=POOL, proposers=2)
    assert sorted(each.name for each in tmp_path.glob("proposer-*")) == [
        f"proposer-{number}.{kind}" for number in (1, 2) for kind in ("json", "safetensors")
    ]
    (tmp_path / policy_training.SNAPSHOTS / "round-01.safetensors").unlink()
    with pytest.raises(ConfigError, match="trained without snapshots"):
        train_policy(tmp_path, CPU, 2, pool=POOL, proposers=2)
