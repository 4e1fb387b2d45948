"""A trained policy that only acts: what it would do in a batch of observations."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from ziggurat.core.errors import ConfigError
from ziggurat.policies.actions import Actions, Categorical, Gaussian
from ziggurat.policies.agents.supported_spaces import check_spaces

_DEVIATION = 0.1
"""Standard deviation that a deterministic policy is given for divergences, if it explores with none."""


class Member:
    """The policy of an agent as it is now, with the statistics that its observations are standardised by.

    Both are copied, to the CPU: the agent may train on, and the member stays as it is.

    Args:
        agent: an agent of A2C, PPO, DQN, DDPG, TD3 or SAC.
        temperature: what values of actions are divided by to make probabilities of them (DQN).
        deviation: standard deviation of deterministic policies, in shares of half the range of the actions.

    Attributes:
        action_space: the actions.
        observation_space: the observations.
        env: the agent's own environment that standardises observations, with the statistics that it has in future; None
            if it has none.

    Raises:
        ConfigError: the agent is of another kind, or ensembles have no rule for its actions or observations.
    """

    def __init__(self, agent: BaseAlgorithm, temperature: float = 1.0, deviation: float = _DEVIATION) -> None:
        if not isinstance(agent.policy, ActorCriticPolicy | DQNPolicy | SACPolicy | TD3Policy):
            kind = type(agent).__name__
            raise ConfigError(f"an agent of {kind} as a member", "use one of A2C, PPO, DQN, DDPG, TD3, SAC")
        check_spaces(f"the agent of {type(agent).__name__}", agent.action_space, agent.observation_space)
        self._policy, self._temperature, self._deviation = _copied(agent.policy), temperature, deviation or _DEVIATION
        self.action_space, self.observation_space = agent.action_space, agent.observation_space
        env = agent.get_env()
        self.env: VecNormalize | None = None if env is None else unwrap_vec_normalize(env)
        self._statistics = None if self.env is None else copy.deepcopy(self.env)  # without its environments

    def actions(self, observations: npt.NDArray[Any]) -> Actions:
        """Returns what the policy would do in each of the observations, (N, …), as the environment returned them."""
        if self._statistics is not None:
            observations = np.asarray(self._statistics.normalize_obs(observations), np.float32)
        policy: Any = self._policy
        with torch.no_grad():
            seen, _ = policy.obs_to_tensor(observations)
            if isinstance(policy, ActorCriticPolicy):
                return self._of_distribution(policy.get_distribution(seen))
            if isinstance(policy, DQNPolicy):
                return Categorical.of_logits(policy.q_net(seen).numpy() / self._temperature)
            if isinstance(policy, SACPolicy):
                mean, log_std, latent = policy.actor.get_action_dist_params(seen)
                return self._of_distribution(policy.actor.action_dist.proba_distribution(mean, log_std, **latent))
            action = policy.actor(seen)
            return self._gaussian(action, torch.full_like(action, self._deviation), action)

    def _of_distribution(self, found: Any) -> Actions:
        """Returns what a distribution of stable-baselines3 says; with squashed actions, that before squashing."""
        if isinstance(self.action_space, spaces.Discrete):
            return Categorical.of_logits(found.distribution.logits.numpy())
        return self._gaussian(found.distribution.mean, found.distribution.stddev, found.mode())

    def _gaussian(self, mean: torch.Tensor, std: torch.Tensor, action: torch.Tensor) -> Gaussian:
        """Returns the normal distributions, with the action in the units of the environment, within its bounds."""
        assert isinstance(self.action_space, spaces.Box)
        taken = action.numpy()
        if self._policy.squash_output:
            taken = self._policy.unscale_action(taken)
        else:
            taken = np.clip(taken, self.action_space.low, self.action_space.high)
        mean_ND, std_ND = (np.asarray(each.expand(mean.shape).numpy(), np.float64) for each in (mean, std))
        return Gaussian(mean_ND, std_ND, np.asarray(taken, np.float64))


def _copied(policy: BasePolicy) -> BasePolicy:
    """Returns a policy of equal weights on the CPU, made anew: distributions of the last update cannot be copied."""
    settings = policy._get_constructor_parameters()  # pyright: ignore[reportPrivateUsage] - as saving does
    with torch.random.fork_rng(devices=[]):  # weights are drawn and overwritten; a training goes on as if none were
        made = type(policy)(**settings)
    made.load_state_dict(policy.state_dict())
    made.set_training_mode(False)
    return made
