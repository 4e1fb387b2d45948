"""An ensemble of one member predicts what its agent does, for single observations and batches, however it explores."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("stable_baselines3")

from stable_baselines3 import A2C, DQN, PPO, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from ziggurat.core.errors import ConfigError
from ziggurat.policies.actions import Gaussian
from ziggurat.policies.agents.ensemble_policy import EnsemblePolicy
from ziggurat.policies.agents.member import Member

SMALL: dict[str, Any] = {"policy": "MlpPolicy", "seed": 0, "device": "cpu"}
SQUASHED = {"net_arch": [8], "squash_output": True}
LATE = {"learning_starts": 20, "buffer_size": 100, "batch_size": 8}
AGENTS: dict[str, Any] = {
    "a2c": lambda: A2C(env="CartPole-v1", policy_kwargs={"net_arch": [8]}, **SMALL),
    "dqn": lambda: DQN(env="CartPole-v1", policy_kwargs={"net_arch": [8]}, **LATE, **SMALL),
    "ppo": lambda: PPO(env="Pendulum-v1", n_steps=64, policy_kwargs={"net_arch": [8]}, **SMALL),
    "a2c gSDE": lambda: A2C(env="Pendulum-v1", use_sde=True, policy_kwargs={"net_arch": [8]}, **SMALL),
    "a2c gSDE squashed": lambda: A2C(env="Pendulum-v1", use_sde=True, policy_kwargs=SQUASHED, **SMALL),
    "sac": lambda: SAC(env="Pendulum-v1", policy_kwargs={"net_arch": [8]}, **LATE, **SMALL),
    "sac gSDE": lambda: SAC(env="Pendulum-v1", use_sde=True, policy_kwargs={"net_arch": [8]}, **LATE, **SMALL),
    "td3": lambda: TD3(env="Pendulum-v1", policy_kwargs={"net_arch": [8]}, **LATE, **SMALL),
}


@pytest.mark.parametrize("name", AGENTS)
def test_one_member_predicts_as_its_agent(name: str) -> None:
    agent = AGENTS[name]().learn(64)
    env = agent.get_env()
    is_discrete = isinstance(env.action_space, spaces.Discrete)
    together = EnsemblePolicy([Member(agent)], "vote" if is_discrete else "mean")
    batch = np.stack([env.observation_space.sample() for _ in range(20)]).clip(-3, 3)
    for observed in (batch, batch[:1], batch[0]):
        expected, _ = agent.predict(observed, deterministic=True)
        found, state = together.predict(observed, "kept")
        assert (found.shape, found.dtype, state) == (expected.shape, expected.dtype, "kept")
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    plain: Any = gym.make("CartPole-v1" if is_discrete else "Pendulum-v1")
    first, _ = plain.reset(seed=0)
    plain.step(together.predict(first)[0])


def test_deviations_of_gsde_are_those_that_actions_are_drawn_with() -> None:
    """State-dependent noise is a linear map of the state; over draws of its weights it has a deviation."""
    import torch

    for name in ("a2c gSDE", "sac gSDE"):
        agent = AGENTS[name]().learn(64)
        observed = np.random.default_rng(0).uniform(-1, 1, (4, 3)).astype(np.float32)
        found = Member(agent).actions(observed)
        assert isinstance(found, Gaussian)
        seen, _ = agent.policy.obs_to_tensor(observed)
        drawn = list[np.ndarray]()
        torch.manual_seed(0)
        for _ in range(2000):
            with torch.no_grad():
                if name == "sac gSDE":
                    agent.actor.reset_noise(4)
                    drawn.append(torch.atanh(agent.actor(seen).clamp(-1 + 1e-6, 1 - 1e-6)).numpy())
                else:
                    agent.policy.reset_noise(4)
                    drawn.append(agent.policy.get_distribution(seen).sample().numpy())
        np.testing.assert_allclose(np.std(drawn, 0), found.std_ND, rtol=0.1)
        np.testing.assert_allclose(np.mean(drawn, 0), found.mean_ND, atol=0.1 * float(found.std_ND.max()))


def standardised(seed: int) -> VecNormalize:
    envs = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1", max_episode_steps=30)] * 2))
    envs.seed(seed)
    return envs


def test_observations_are_standardised_once() -> None:
    envs = standardised(0)
    agent = PPO(env=envs, n_steps=64, policy_kwargs={"net_arch": [8]}, **SMALL).learn(512)
    early = Member(agent)
    member, raw = Member(agent), np.random.default_rng(0).uniform(-2, 2, (20, 3)).astype(np.float32)
    expected, _ = agent.predict(envs.normalize_obs(raw), deterministic=True)
    together = EnsemblePolicy([member], "mean")
    np.testing.assert_allclose(together.act(raw), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together.predict(envs.normalize_obs(raw))[0], expected, rtol=1e-4, atol=1e-5)
    agent.learn(256, reset_num_timesteps=False)  # the statistics of the environments go on
    np.testing.assert_allclose(together.predict(envs.normalize_obs(raw))[0], expected, rtol=1e-4, atol=1e-5)
    other = standardised(1)
    other.reset()
    for _ in range(40):
        other.step(np.zeros((2, 1), np.float32))
    by_other = EnsemblePolicy([early], "mean", other)
    np.testing.assert_allclose(by_other.predict(other.normalize_obs(raw))[0], expected, rtol=1e-4, atol=1e-5)
    plain = DummyVecEnv([lambda: gym.make("Pendulum-v1")])
    np.testing.assert_allclose(EnsemblePolicy([early], "mean", plain).predict(raw)[0], expected, rtol=1e-4, atol=1e-5)


def test_it_is_evaluated_in_the_environments_of_its_agent() -> None:
    envs = standardised(0)
    agent = PPO(env=envs, n_steps=64, policy_kwargs={"net_arch": [8]}, **SMALL).learn(512)
    envs.training = envs.norm_reward = False
    together = EnsemblePolicy([Member(agent)], "mean")
    found: list[float] = []
    for policy in (agent, together):
        envs.seed(3)
        found.append(float(evaluate_policy(policy, envs, 4, warn=False)[0]))
    assert found[0] == pytest.approx(found[1], rel=1e-3)


class Buttons(gym.Env[np.ndarray, np.ndarray]):
    """Several choices at once."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.0, True, False, {}


def test_members_without_a_rule_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"the agent of A2C has the actions MultiDiscrete"):
        Member(A2C(env=Buttons(), **SMALL))
    one, other = Member(AGENTS["a2c"]()), Member(AGENTS["ppo"]())
    with pytest.raises(ConfigError, match="use policies of the same environment") as refused:
        EnsemblePolicy([one, other], "vote")
    assert "another in Discrete(2)" in refused.value.problem
