"""Grows a model's config to that of a deeper or a wider model."""

from __future__ import annotations

import math
from typing import Any, TypeVar, cast

from ziggurat.core.config import Config
from ziggurat.interactions.mlp import MLP

WIDTHS = frozenset(
    {"hidden", "outputs", "fm_outputs", "linear_outputs", "rank", "head_dim", "feed_forward", "cin_layers", "blocks"}
)
"""Config keys of models and blocks that are widths; the value is one integer, or a sequence with one per layer."""

ConfigT = TypeVar("ConfigT", bound=Config)
LayerT = TypeVar("LayerT")


def wider(config: ConfigT, factor: float) -> ConfigT:
    """Returns ``config`` with every width in it and its sections multiplied by ``factor`` and rounded up."""
    return config.model_copy(
        update={name: _grown(name, getattr(config, name), factor) for name in type(config).model_fields}
    )


def deeper(config: MLP.Config, times: int) -> MLP.Config:
    """Returns an MLP config with each hidden layer repeated ``times`` times in place."""
    skips = tuple(times * (layer - 1) + each for layer in config.skips for each in range(1, times + 1))
    return config.model_copy(update={"hidden": repeated(config.hidden, times), "skips": skips})


def repeated(layers: tuple[LayerT, ...], times: int) -> tuple[LayerT, ...]:
    """Returns each layer's setting repeated ``times`` times in place: (256, 128) twice is (256, 256, 128, 128)."""
    return tuple(layer for layer in layers for _ in range(times))


def _grown(name: str, value: Any, factor: float) -> Any:
    if isinstance(value, Config):
        return wider(value, factor)
    if isinstance(value, tuple):
        return tuple(_grown(name, item, factor) for item in cast("tuple[Any, ...]", value))
    if name in WIDTHS and isinstance(value, int):
        return math.ceil(value * factor - 1e-9)
    return value
