"""Makes an agent of stable-baselines3 of its config."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv

from ziggurat.core.errors import ConfigError
from ziggurat.policies.config import (
    A2CConfig,
    AlgorithmConfig,
    DDPGConfig,
    DQNConfig,
    PPOConfig,
    SACConfig,
    TaskConfig,
    TD3Config,
)


def make_agent(config: AlgorithmConfig, task: TaskConfig, envs: VecEnv, rate: float, seed: int) -> BaseAlgorithm:
    """Returns an untrained agent on the CPU.

    Args:
        config: the algorithm and its settings.
        task: the task, for messages.
        envs: the environments that it is trained in.
        rate: the learning rate, until a callback sets another.
        seed: seeds its initial weights.

    Raises:
        ConfigError: the algorithm is for other actions than these, or settings do not fit together.
    """
    is_discrete = isinstance(envs.action_space, spaces.Discrete)
    allowed = not isinstance(config, DDPGConfig | TD3Config | SACConfig) if is_discrete else config.name != "dqn"
    if not allowed:
        kinds = ("discrete", "a2c, ppo, dqn") if is_discrete else ("continuous", "a2c, ppo, ddpg, td3, sac")
        raise ConfigError(
            f"algorithm: {config.name} cannot act in {task.env}, whose actions are {kinds[0]}", f"use one of {kinds[1]}"
        )
    policy = "CnnPolicy" if is_image_space(envs.observation_space) else "MlpPolicy"
    common: dict[str, Any] = {
        "policy": policy,
        "env": envs,
        "learning_rate": rate,
        "gamma": config.gamma,
        "seed": seed,
        "device": "cpu",
        "policy_kwargs": {"net_arch": list(config.hidden)},
    }
    match config:
        case A2CConfig():
            return A2C(**common, **_on_policy(config))
        case PPOConfig():
            rollout = config.n_steps * envs.num_envs
            if config.batch_size > rollout:
                raise ConfigError(
                    f"algorithm.batch_size: {config.batch_size}, but {rollout} steps are made between updates",
                    "use a smaller batch, or more n_steps or environments",
                )
            return PPO(
                **common, **_on_policy(config), batch_size=config.batch_size, n_epochs=config.n_epochs,
                clip_range=config.clip_range,
            )  # fmt: skip
        case DQNConfig():
            return DQN(
                **common, **_off_policy(config), target_update_interval=config.target_update,
                exploration_fraction=config.exploration_share, exploration_final_eps=config.exploration_end,
            )  # fmt: skip
        case TD3Config():
            noise = _noise(config.noise, envs)
            return TD3(**common, **_off_policy(config), action_noise=noise, policy_delay=config.policy_delay)
        case DDPGConfig():
            return DDPG(**common, **_off_policy(config), action_noise=_noise(config.noise, envs))
        case SACConfig():
            return SAC(**common, **_off_policy(config))


def _on_policy(config: A2CConfig | PPOConfig) -> dict[str, Any]:
    names = ("n_steps", "gae_lambda", "ent_coef", "vf_coef", "max_grad_norm")
    return {name: getattr(config, name) for name in names}


def _off_policy(config: DQNConfig | DDPGConfig | TD3Config | SACConfig) -> dict[str, Any]:
    names = ("buffer_size", "learning_starts", "batch_size", "tau", "train_freq", "gradient_steps")
    return {name: getattr(config, name) for name in names}


def _noise(deviation: float, envs: VecEnv) -> NormalActionNoise | None:
    if not deviation:
        return None
    shape = envs.action_space.shape
    assert shape is not None
    return NormalActionNoise(np.zeros(shape), np.full(shape, deviation))
