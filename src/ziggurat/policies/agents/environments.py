"""Makes the environments of a task."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import ClipReward, TimeLimit
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from ziggurat.core.errors import ConfigError, EnvironmentMismatch, nearest
from ziggurat.policies.agents.atari import make_atari
from ziggurat.policies.agents.supported_spaces import check_spaces
from ziggurat.policies.config import TaskConfig

Env = gym.Env[Any, Any]


def make_environment(task: TaskConfig, *, training: bool = False, frames: bool = False) -> Env:
    """Returns an environment of the task.

    Args:
        task: the task.
        training: clip the rewards of Atari games; an episode's return, in ``info["episode"]``, is not clipped.
        frames: make it able to render frames, where it is.

    Raises:
        ConfigError: there is no such environment, or policies for its spaces cannot be made, or its episodes have no
            limit.
        EnvironmentMismatch: it needs a library that is not installed.
    """
    try:
        if task.is_atari:
            env = make_atari(task.env, task.atari, frames=frames)
        else:
            # In place of the limit that the environment is registered with, which may be a lower one.
            env = gym.make(task.env, task.max_steps, render_mode="rgb_array" if frames else None)
        if task.is_atari and task.max_steps is not None:
            env = TimeLimit(env, task.max_steps)
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        ours = task.is_atari or "mujoco" in str(error).lower()
        hint = "pip install 'ziggurat[rl]'" if ours else "install the library that the message names"
        raise EnvironmentMismatch(f"task.env: {task.env}: {error}", hint) from None
    except gym.error.Error as error:
        close = nearest(task.env, gym.registry)
        hint = f"did you mean {close}?" if close else "`gymnasium.pprint_registry()` lists those that are installed"
        raise ConfigError(f"task.env: {task.env}: {error}", hint) from None
    check_spaces(f"task.env: {task.env}", env.action_space, env.observation_space)
    if not task.is_atari and task.max_steps is None and (env.spec is None or env.spec.max_episode_steps is None):
        raise ConfigError(
            f"task.max_steps: {task.env} states no limit of its own, and a policy might never end its episode",
            "give a number of steps after which episodes are cut off",
        )
    env = Monitor(env)
    return ClipReward(env, -1.0, 1.0) if training and task.is_atari and task.atari.clip_rewards else env


def training_environments(task: TaskConfig, count: int, gamma: float) -> VecEnv:
    """Returns ``count`` environments that are stepped in turn, with running statistics where the task asks for them."""
    envs: VecEnv = DummyVecEnv([lambda: make_environment(task, training=True)] * count)
    return VecNormalize(envs, gamma=gamma) if task.normalise else envs
