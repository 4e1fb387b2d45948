"""Members that are collected during a training stay what the agent was then, and the training does not notice."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ziggurat.policies.actions import divergence_matrix
from ziggurat.policies.agents.ensemble_policy import EnsemblePolicy
from ziggurat.policies.agents.member import Member
from ziggurat.policies.agents.snapshot_callback import SnapshotCallback
from ziggurat.policies.schedule import CyclicalRate

OBSERVATIONS = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)


def test_the_documented_code_collects_different_policies() -> None:
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(code) == 1
    names: dict[str, Any] = {"steps": 4096, "cycles": 2, "env": gym.make("CartPole-v1", max_episode_steps=20)}
    exec(code[0], names)
    members, agent = names["members"], names["agent"]
    assert len(members) == 2
    divergence_MM = divergence_matrix([each.actions(OBSERVATIONS) for each in members])
    assert divergence_MM[0, 1] > 1e-4
    expected, _ = agent.predict(OBSERVATIONS, deterministic=True)
    assert members[1].actions(OBSERVATIONS).likeliest_N.tolist() == expected.tolist()


@pytest.mark.parametrize(("algorithm", "more"), [(A2C, {}), (PPO, {"batch_size": 20})])
def test_members_keep_weights_and_statistics_and_training_does_not_notice(algorithm: Any, more: dict[str, int]) -> None:
    def learned(collect: bool) -> tuple[BaseAlgorithm, list[Member], list[Any]]:
        envs = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=20)] * 2))
        agent = algorithm("MlpPolicy", envs, n_steps=20, seed=0, policy_kwargs={"net_arch": [8]}, **more)
        members: list[Member] = []
        then: list[Any] = []

        def keep(cycle: int, agent: BaseAlgorithm) -> None:
            if collect:
                members.append(Member(agent))
                then.append(agent.predict(envs.normalize_obs(observations), deterministic=True)[0])

        agent.learn(400, callback=SnapshotCallback(400, 4, CyclicalRate(0.01, 400, 4).rate, keep))
        return agent, members, then

    observations = np.random.default_rng(0).uniform(-1, 1, (30, 3)).astype(np.float32)
    agent, members, then = learned(True)
    assert len(members) == 4
    for member, expected in zip(members, then, strict=True):
        np.testing.assert_allclose(EnsemblePolicy([member], "mean").act(observations), expected, rtol=1e-5, atol=1e-6)
    assert all(np.abs(one - other).max() > 1e-3 for one, other in itertools.pairwise(then))
    alone, _, _ = learned(False)
    mine, theirs = agent.policy.state_dict(), alone.policy.state_dict()
    assert all(mine[name].numpy().tobytes() == theirs[name].numpy().tobytes() for name in mine)


def test_a_callback_serves_a_second_training() -> None:
    taken: list[tuple[int, int]] = []
    callback = SnapshotCallback(80, 2, None, lambda cycle, agent: taken.append((cycle, agent.num_timesteps)))
    agent = A2C("MlpPolicy", "CartPole-v1", n_steps=8, seed=0, device="cpu", policy_kwargs={"net_arch": [4]})
    agent.learn(40, callback=callback)
    assert taken == [(1, 40)]
    agent.learn(40, callback=callback, reset_num_timesteps=False)  # it goes on
    assert taken == [(1, 40), (2, 80)]
    agent.learn(80, callback=callback)  # it begins anew
    assert taken == [(1, 40), (2, 80)] * 2
