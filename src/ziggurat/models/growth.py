"""How a model's config becomes that of a larger model: deeper, wider."""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

from ziggurat.core.config import Config
from ziggurat.interactions.mlp import MLP

WIDTHS = frozenset(
    {"hidden", "outputs", "fm_outputs", "linear_outputs", "rank", "head_dim", "feed_forward", "cin_layers", "blocks"}
)
"""Keys, of models and blocks alike, that say how wide something is; a sequence of numbers has a width a layer."""

ConfigT = TypeVar("ConfigT", bound=Config)


def wider(config: ConfigT, factor: float) -> ConfigT:
    """Every width in ``config`` and its sections times ``factor``, rounded up; all else as it was."""
    return config.model_copy(
        update={name: _grown(name, getattr(config, name), factor) for name in type(config).model_fields}
    )


def deeper(config: MLP.Config, times: int) -> MLP.Config:
    """Each hidden layer ``times`` times, one after another."""
    return config.model_copy(update={"hidden": repeated(config.hidden, times)})


def repeated(layers: tuple[int, ...], times: int) -> tuple[int, ...]:
    """Each of ``layers`` ``times`` times, one after another: (256, 128) twice is (256, 256, 128, 128)."""
    return tuple(width for width in layers for _ in range(times))


def _grown(name: str, value: Any, factor: float) -> Any:
    if isinstance(value, Config):
        return wider(value, factor)
    if isinstance(value, tuple):
        return tuple(_grown(name, item, factor) for item in cast("tuple[Any, ...]", value))
    if name in WIDTHS and isinstance(value, int):
        return math.ceil(value * factor - 1e-9)
    return value
