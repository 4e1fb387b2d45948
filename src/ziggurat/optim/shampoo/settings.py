"""Settings of a group of parameters: as an optimizer is made with them, and changed later."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.config import ShampooConfig

MAY_CHANGE = ("lr", "betas", "beta3", "epsilon", "weight_decay", "momentum", "nesterov", "decay")
"""Settings that are read from a group at each step."""
OTHERS = ("params", "param_names", "highest_lr", "initial_lr")
"""Of a group, what is no setting."""


def parsed(settings: Mapping[str, Any]) -> ShampooConfig:
    """Raises a ConfigError where one is none."""
    return parse_config(ShampooConfig, {"name": "shampoo", **settings}, "shampoo")


def changed(config: ShampooConfig, made: Mapping[str, Any], group: Mapping[str, Any]) -> ShampooConfig:
    """Settings as a group has them now; ``config`` and ``made``: as it was made.

    Raises:
        ConfigError: one was changed that cannot be, or to what it cannot be, or a mean or momentum is to begin that
            there is no state for.
    """
    new = {key: group[key] for key in made if group[key] != made[key]}
    begins = [key for key in ("momentum", "betas") if key in new and _first(group[key]) and not _first(made[key])]
    others = [key for key in new if key not in MAY_CHANGE] + begins
    if others:
        raise ConfigError(
            f"shampoo: {others[0]} was changed to {group[others[0]]!r}, and states are of {made[others[0]]!r}",
            f"make a new optimizer; what may change is {', '.join(MAY_CHANGE)}",
        )
    lr = new.pop("lr", made["lr"])
    if not 0 <= lr < math.inf:
        raise ConfigError(f"shampoo: lr was changed to {lr!r}", "a finite number, 0 or more")
    if new:
        config = parsed({**made, **new})
    return config if lr == config.lr else config.model_copy(update={"lr": float(lr)})


def plain(config: ShampooConfig) -> dict[str, Any]:
    """Settings as a group has them: numbers, text, lists and dictionaries."""
    return config.model_dump(exclude={"name"})


def _first(value: Any) -> float:
    return float(value[0] if isinstance(value, list | tuple) else value)
