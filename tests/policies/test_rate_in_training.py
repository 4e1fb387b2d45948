"""The rates that updates are made with, and DQN's exploration, over the save points of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3 import DQN, PPO

from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.schedule import CyclicalRate
from ziggurat.policies.training import train

STEPS, ROLLOUT, RATE = 192, 16, 0.01


def config(algorithm: dict[str, Any], **training: Any) -> PoliciesConfig:
    values = {"steps": STEPS, "cycles": 2, "rate": RATE, "environments": 2, "save_every": 48, **training}
    task = {"env": "CartPole-v1", "max_steps": 30}
    return PoliciesConfig.model_validate(
        {"task": task, "algorithm": algorithm, "training": values, "selection": {"members": 2}}
    )


@pytest.mark.parametrize("schedule", ["cyclical", "constant"])
def test_updates_have_the_rate_of_their_rollout(schedule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, float]] = []
    update = PPO.train

    def watched(self: PPO) -> None:
        update(self)
        made.append((self.num_timesteps, self.policy.optimizer.param_groups[0]["lr"]))

    monkeypatch.setattr(PPO, "train", watched)
    algorithm = {"name": "ppo", "n_steps": ROLLOUT // 2, "batch_size": 16, "n_epochs": 1, "hidden": (4,)}
    train(config(algorithm, schedule=schedule), tmp_path / "run")
    assert [step for step, _ in made] == list(range(ROLLOUT, STEPS + 1, ROLLOUT))
    cyclical = CyclicalRate(RATE, STEPS, 2)
    firsts = range(1, STEPS + 1, ROLLOUT)
    expected = [RATE if schedule == "constant" else cyclical.rate(first) for first in firsts]
    assert [rate for _, rate in made] == pytest.approx(expected)


def test_exploration_shrinks_over_the_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []
    step = DQN._on_step  # pyright: ignore[reportPrivateUsage]

    def watched(self: DQN) -> None:
        step(self)
        seen.append((self.num_timesteps, self.exploration_rate))

    monkeypatch.setattr(DQN, "_on_step", watched)
    algorithm = {
        "name": "dqn", "learning_starts": 40, "buffer_size": 100, "hidden": (4,), "exploration_share": 0.75,
        "exploration_end": 0.1,
    }  # fmt: skip
    train(config(algorithm), tmp_path / "run")
    expected = [1 - 0.9 * min(done / (0.75 * STEPS), 1.0) for done, _ in seen]
    assert [rate for _, rate in seen] == pytest.approx(expected)
    assert seen[-1] == (STEPS, pytest.approx(0.1))
