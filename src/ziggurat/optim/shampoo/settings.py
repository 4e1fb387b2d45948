"""Settings of a group of parameters: as an optimizer is made with them, and changed later."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.arguments import ShampooArguments

MAY_CHANGE = ("lr", "betas", "beta3", "epsilon", "weight_decay", "momentum", "nesterov", "decay")
"""Settings that are read from a group at each step."""
OTHERS = ("params", "param_names", "highest_lr", "initial_lr", "name")
"""Of a group, what is no setting."""


def parsed(settings: Mapping[str, Any]) -> ShampooArguments:
    """Raises a ConfigError where one is none."""
    return parse_config(ShampooArguments, {"name": "shampoo", **settings}, "shampoo")


class GroupSettings:
    """Settings of a group: as it was made, which its states are of, and as it has them now.

    Args:
        config: as it was made.

    Attributes:
        made: that, as a group has it.
    """

    def __init__(self, config: ShampooArguments) -> None:
        self._config, self.made = config, plain(config)
        self._read = itemgetter(*(key for key in self.made if key != "lr"))
        self._values = self._read(self.made)

    def now(self, group: Mapping[str, Any]) -> ShampooArguments:
        """As ``group`` has them, but for the learning rate; the same object while they are as they were made.

        Raises:
            ConfigError: one was changed that cannot be, or to what it cannot be, or a mean or momentum is to begin
                that there is no state for.
        """
        lr = group["lr"]
        if not 0 <= lr < math.inf:
            raise ConfigError(f"shampoo: lr was changed to {lr!r}", "a finite number, 0 or more")
        if self._read(group) == self._values:
            return self._config
        made = self.made
        new = {key: group[key] for key in made if key != "lr" and group[key] != made[key]}
        config = self._config
        fixed = [key for key in new if key not in MAY_CHANGE]
        if not fixed:
            config = parsed({**made, **new})
            fixed += ["momentum"] * (config.momentum > 0 and not self._config.momentum)
            fixed += [key for key in ("beta3", "betas") if key in new and config.has_mean > self._config.has_mean]
        if fixed:
            raise ConfigError(
                f"shampoo: {fixed[0]} was changed to {group[fixed[0]]!r}, and states are of {made[fixed[0]]!r}",
                f"make a new optimizer; what may change is {', '.join(MAY_CHANGE)}",
            )
        return config


def alike(configs: Sequence[ShampooArguments]) -> list[int]:
    """Of each, the number of the first that is the same but for learning rate and weight decay."""
    others = [each.model_copy(update={"lr": 0.0, "weight_decay": 0.0}) for each in configs]
    return [others.index(each) for each in others]


def plain(config: ShampooArguments) -> dict[str, Any]:
    """Settings as a group has them: numbers, text, lists and dictionaries."""
    return config.model_dump(exclude={"name"})
