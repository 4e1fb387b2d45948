"""Settings of a group of parameters: those that the optimizer was made with, and later changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.arguments import ShampooArguments

MUTABLE_SETTINGS = ("lr", "betas", "beta3", "epsilon", "weight_decay", "momentum", "nesterov", "decay")
"""Settings that may be changed; they are read from a group at each step."""
NON_SETTINGS = ("params", "param_names", "highest_lr", "initial_lr", "name")
"""Keys of a group that are not settings."""


def parse_settings(settings: Mapping[str, Any]) -> ShampooArguments:
    """Parses the settings of a group.

    Raises:
        ConfigError: an unknown setting, or an invalid value.
    """
    return parse_config(ShampooArguments, {"name": "shampoo", **settings}, "shampoo")


class GroupSettings:
    """The initial and the current settings of a group; its states are shaped by the initial ones.

    Args:
        config: the initial settings.

    Attributes:
        initial: the initial settings, in the form of a group's entries.
    """

    def __init__(self, config: ShampooArguments) -> None:
        self._config, self.initial = config, as_group(config)
        self._read = itemgetter(*(key for key in self.initial if key != "lr"))
        self._values = self._read(self.initial)

    def current(self, group: Mapping[str, Any]) -> ShampooArguments:
        """Returns the current settings of ``group``, except for the learning rate.

        Returns the same object as long as the settings are unchanged.

        Raises:
            ConfigError: a setting was changed that must not change, or to an invalid value, or one that needs a mean or
                momentum for which there is no state.
        """
        lr = group["lr"]
        if not 0 <= lr < math.inf:
            raise ConfigError(f"shampoo: lr was changed to {lr!r}", "give a finite number, 0 or more")
        if self._read(group) == self._values:
            return self._config
        initial = self.initial
        new = {key: group[key] for key in initial if key != "lr" and group[key] != initial[key]}
        config = self._config
        fixed = [key for key in new if key not in MUTABLE_SETTINGS]
        if not fixed:
            config = parse_settings({**initial, **new})
            fixed += ["momentum"] * (config.momentum > 0 and not self._config.momentum)
            fixed += [key for key in ("beta3", "betas") if key in new and config.has_mean > self._config.has_mean]
        if fixed:
            raise ConfigError(
                f"shampoo: {fixed[0]} was changed to {group[fixed[0]]!r}, but the states are of {initial[fixed[0]]!r}",
                f"make a new optimizer; only these may change: {', '.join(MUTABLE_SETTINGS)}",
            )
        return config


def first_alike(configs: Sequence[ShampooArguments]) -> list[int]:
    """Returns for each config the number of the first one that differs at most in learning rate and weight decay."""
    others = [each.model_copy(update={"lr": 0.0, "weight_decay": 0.0}) for each in configs]
    return [others.index(each) for each in others]


def as_group(config: ShampooArguments) -> dict[str, Any]:
    """Returns the settings as a group's entries: numbers, text, lists and dictionaries."""
    return config.model_dump(exclude={"name"})
