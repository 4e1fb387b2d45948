"""The regularisation of the config's own MLP, which searched MLPs have unless the space says something else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar, cast

import pydantic

from ziggurat.interactions.mlp import MLP
from ziggurat.search.architecture.space.super_mlp import MLPChoices

SettingsT = TypeVar("SettingsT", bound=pydantic.BaseModel)


def own_mlp(model: pydantic.BaseModel) -> MLP.Config:
    """Returns the MLP with the most hidden numbers within a model's config, the first of equal ones; the default
    without hidden layers if there is none."""
    found = [each for each in _within(model) if isinstance(each, MLP.Config) and each.hidden]
    return max(found, key=lambda each: sum(each.hidden), default=MLP.Config(hidden=()))


def with_own_regularisation(settings: SettingsT, model: pydantic.BaseModel) -> SettingsT:
    """Returns the settings of a space in which every :class:`MLPChoices` has a dropout and an activation: its own, or
    those of the config's MLP.

    Args:
        settings: the settings of a space, from this package or another.
        model: the config of the model that the search begins with.
    """
    own = own_mlp(model)
    return _resolved(settings, own)


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, pydantic.BaseModel):
        yield value
        for name in type(value).model_fields:
            yield from _within(getattr(value, name))
    elif isinstance(value, list | tuple):
        for each in cast("tuple[Any, ...]", value):
            yield from _within(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _within(each)


def _resolved(value: Any, own: MLP.Config) -> Any:
    if isinstance(value, MLPChoices):
        dropout = own.dropout if value.dropout is None else value.dropout
        return value.model_copy(update={"dropout": dropout, "activation": value.activation or own.activation})
    if isinstance(value, pydantic.BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields}
        found = {name: _resolved(each, own) for name, each in fields.items()}
        changed = {name: each for name, each in found.items() if each is not fields[name]}
        return value.model_copy(update=changed) if changed else value
    if isinstance(value, tuple):
        several = cast("tuple[Any, ...]", value)
        replaced = tuple(_resolved(each, own) for each in several)
        return replaced if any(new is not old for new, old in zip(replaced, several, strict=True)) else several
    return value
