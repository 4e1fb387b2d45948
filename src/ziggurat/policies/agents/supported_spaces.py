"""The spaces that ensembles have rules for."""

from __future__ import annotations

from gymnasium import Space, spaces

from ziggurat.core.errors import ConfigError


def check_spaces(name: str, actions: Space[object], observations: Space[object]) -> None:
    """Refuses spaces that ensembles have no rule for.

    Args:
        name: what has them, for the message.
        actions: its actions.
        observations: its observations.

    Raises:
        ConfigError: actions are neither one choice nor bounded numbers, or observations are no array.
    """
    is_bounded = isinstance(actions, spaces.Box) and actions.is_bounded() and len(actions.shape) == 1
    if not (is_bounded or isinstance(actions, spaces.Discrete)):
        raise ConfigError(f"{name} has the actions {actions}", "use one with Discrete, or a vector of bounded, actions")
    if not isinstance(observations, spaces.Box):
        raise ConfigError(f"{name} has the observations {observations}", "use one whose observations are a Box")
