"""Several policies that act as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.preprocessing import maybe_transpose
from stable_baselines3.common.utils import is_vectorized_observation
from stable_baselines3.common.vec_env import VecEnv, unwrap_vec_normalize

from ziggurat.core.errors import ConfigError
from ziggurat.policies.actions import Actions, Categorical, Gaussian
from ziggurat.policies.agents.member import Member
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.continuous_rules import continuous_action
from ziggurat.policies.discrete_rules import discrete_action, drawn_action
from ziggurat.policies.records import Rule


class EnsemblePolicy:
    """Acts by a rule on what its members would do. It stands where stable-baselines3 expects a model that predicts, as
    in ``evaluate_policy``.

    Args:
        members: one policy or more, for the same actions and observations.
        rule: a rule for discrete actions, or for continuous ones. Of a single member all rules take its action.
        env: the environments whose observations :meth:`predict` is given. Where these standardise them
            (``VecNormalize``), it puts them back first, as each member standardises by the statistics of its own time.
            Default: those of the agent of the last member, as for the agent's own ``predict``.
        drawn: :meth:`act` draws discrete actions instead of taking the most favoured ones.
        seed: seeds these draws; default: each object draws anew.

    Raises:
        ConfigError: there is no member, they have different actions or observations, or the rule is for the other kind
            of actions.
    """

    def __init__(self, members: Sequence[Member], rule: Rule, env: VecEnv | None = None, *, drawn: bool = False,
                 seed: int | None = None) -> None:  # fmt: skip
        if not members:
            raise ConfigError("an ensemble of no policies", "give one or more")
        self.members, self.rule = tuple(members), rule
        space, seen = members[0].action_space, members[0].observation_space
        for each in members:
            if (each.action_space, each.observation_space) != (space, seen):
                raise ConfigError(
                    f"a member acts in {each.action_space} on {each.observation_space}, another in {space} on {seen}",
                    "use policies of the same environment",
                )
        is_discrete = isinstance(space, spaces.Discrete)
        if is_discrete != (rule in ("vote", "add", "multiply")):
            kind = "discrete" if is_discrete else "continuous"
            allowed = "vote, add, multiply" if is_discrete else "mean, bins, density, elimination"
            raise ConfigError(f"the rule {rule} does not suit {kind} actions", f"use one of {allowed}")
        self._space, self._seen = space, seen
        self._is_drawn, self._draw = drawn, np.random.default_rng(seed)
        self._env = members[-1].env if env is None else unwrap_vec_normalize(env)

    def act(self, observations: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the actions for observations (N, …): int64 (N,), or float32 (N, D) in the environment's units."""
        return self._taken(observations, drawn=self._is_drawn)

    def _taken(self, observations: npt.NDArray[Any], *, drawn: bool) -> npt.NDArray[Any]:
        return self.combined([member.actions(observations) for member in self.members], drawn=drawn)

    def combined(self, actions: Sequence[Actions], *, drawn: bool = False) -> npt.NDArray[Any]:
        """Returns the actions by the rule, of what each member would do; discrete ones can be drawn."""
        if isinstance(self._space, spaces.Discrete):
            log_MNA = np.stack([each.log_NA for each in actions if isinstance(each, Categorical)])
            rule: Any = self.rule
            if drawn:
                action_N = drawn_action(rule, log_MNA, self._draw.random(log_MNA.shape[:2]))
            else:
                action_N = discrete_action(rule, log_MNA)
            return action_N + int(self._space.start)
        assert isinstance(self._space, spaces.Box)
        action_MND = np.stack([each.action_ND for each in actions if isinstance(each, Gaussian)])
        low, high = (np.asarray(each, np.float64) for each in (self._space.low, self._space.high))
        return continuous_action(self.rule, action_MND, low, high).astype(np.float32)  # pyright: ignore[reportArgumentType]

    def predict(
        self,
        observation: npt.NDArray[Any],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
    ) -> tuple[npt.NDArray[Any], Any]:
        """Returns what an agent's ``predict`` does: actions, and ``state`` as it was.

        Args:
            observation: observations (N, …), or a single one without the first dimension, whose action has none either.
                They are as the environments return them, standardised where these do that; :meth:`act` takes them as
                they are before.
            state, episode_start: of no effect.
            deterministic: take the most favoured actions; discrete ones are drawn otherwise, whatever :meth:`act` does.
                Continuous actions are never drawn.
        """
        del episode_start
        is_batch = is_vectorized_observation(maybe_transpose(observation, self._seen), self._seen)
        if self._env is not None:
            observation = np.asarray(self._env.unnormalize_obs(observation))
        actions = self._taken(observation, drawn=not deterministic)
        return actions if is_batch else actions.squeeze(axis=0), state


def acting(config: PoliciesConfig, members: Sequence[Member], rule: Rule, seeds: Sequence[int]) -> EnsemblePolicy:
    """Returns the members as a config lets them act, with draws of their own for the episodes with these seeds."""
    return EnsemblePolicy(members, rule, drawn=config.is_drawn, seed=seeds[0])
