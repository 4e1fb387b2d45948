"""Several policies that act as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ziggurat.core.errors import ConfigError
from ziggurat.policies.actions import Actions, Categorical, Gaussian
from ziggurat.policies.agents.member import Member
from ziggurat.policies.continuous_rules import continuous_action
from ziggurat.policies.discrete_rules import discrete_action
from ziggurat.policies.records import Rule


class EnsemblePolicy:
    """Acts by a rule on what its members would do. It stands where stable-baselines3 expects a model that predicts, as
    in ``evaluate_policy``.

    Args:
        members: one policy or more, for the same actions.
        rule: a rule for discrete actions, or for continuous ones. Of a single member all rules take its action.

    Raises:
        ConfigError: there is no member, or the rule is for the other kind of actions.
    """

    def __init__(self, members: Sequence[Member], rule: Rule) -> None:
        if not members:
            raise ConfigError("an ensemble of no policies", "give one or more")
        self.members, self.rule = tuple(members), rule
        space = members[0].action_space
        is_discrete = isinstance(space, spaces.Discrete)
        if is_discrete != (rule in ("vote", "add", "multiply")):
            kind = "discrete" if is_discrete else "continuous"
            allowed = "vote, add, multiply" if is_discrete else "mean, bins, density, elimination"
            raise ConfigError(f"the rule {rule} does not suit {kind} actions", f"use one of {allowed}")
        self._space = space

    def act(self, observations: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the actions for observations (N, …): int64 (N,), or float32 (N, D) in the environment's units."""
        return self.combined([member.actions(observations) for member in self.members])

    def combined(self, actions: Sequence[Actions]) -> npt.NDArray[Any]:
        """Returns the actions by the rule, of what each member would do."""
        if isinstance(self._space, spaces.Discrete):
            log_MNA = np.stack([each.log_NA for each in actions if isinstance(each, Categorical)])
            return discrete_action(self.rule, log_MNA) + int(self._space.start)  # pyright: ignore[reportArgumentType]
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
        """Returns the actions for a batch of observations, and ``state`` as it was; always without exploration."""
        del episode_start, deterministic
        return self.act(observation), state
