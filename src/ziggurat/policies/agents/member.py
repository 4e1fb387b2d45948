"""A trained policy that only acts: what it would do in a batch of observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from ziggurat.policies.actions import Actions, Categorical, Gaussian

_DEVIATION = 0.1
"""Standard deviation that a deterministic policy is given for divergences, if it explores with none."""


class Member:
    """The policy of an agent, with the statistics that its observations are standardised by.

    It refers to the agent's networks: of an agent that trains on, it changes.

    Args:
        agent: an agent of A2C, PPO, DQN, DDPG, TD3 or SAC.
        temperature: what values of actions are divided by to make probabilities of them (DQN).
        deviation: standard deviation of deterministic policies, in shares of half the range of the actions.
    """

    def __init__(self, agent: BaseAlgorithm, temperature: float = 1.0, deviation: float = _DEVIATION) -> None:
        self._policy, self._temperature, self._deviation = agent.policy, temperature, deviation or _DEVIATION
        self.action_space = agent.action_space
        env = agent.get_env()
        self._statistics: VecNormalize | None = None if env is None else unwrap_vec_normalize(env)
        self._policy.set_training_mode(False)

    def actions(self, observations: npt.NDArray[Any]) -> Actions:
        """Returns what the policy would do in each of the observations, (N, …), as the environment returned them."""
        if self._statistics is not None:
            observations = np.asarray(self._statistics.normalize_obs(observations), np.float32)
        policy: Any = self._policy
        with torch.no_grad():
            seen, _ = policy.obs_to_tensor(observations)
            if isinstance(policy, ActorCriticPolicy):
                return self._of_distribution(policy.get_distribution(seen).distribution)
            if isinstance(policy, DQNPolicy):
                return Categorical.of_logits(policy.q_net(seen).numpy() / self._temperature)
            if isinstance(policy, SACPolicy):
                mean, log_std, _ = policy.actor.get_action_dist_params(seen)
                return self._gaussian(mean, log_std.exp(), self._unscaled(mean.tanh()))
            assert isinstance(policy, TD3Policy)
            action = policy.actor(seen)
            return self._gaussian(action, torch.full_like(action, self._deviation), self._unscaled(action))

    def _of_distribution(self, distribution: Any) -> Actions:
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical.of_logits(distribution.logits.numpy())
        assert isinstance(self.action_space, spaces.Box)
        mean = distribution.mean
        action = np.clip(mean.numpy(), self.action_space.low, self.action_space.high)
        return self._gaussian(mean, distribution.stddev, action.astype(np.float64))

    def _unscaled(self, action: torch.Tensor) -> npt.NDArray[np.float64]:
        return np.asarray(self._policy.unscale_action(action.numpy()), np.float64)

    def _gaussian(self, mean: torch.Tensor, std: torch.Tensor, action: npt.NDArray[np.float64]) -> Gaussian:
        mean_ND, std_ND = (np.asarray(each.expand(mean.shape).numpy(), np.float64) for each in (mean, std))
        return Gaussian(mean_ND, std_ND, action)
