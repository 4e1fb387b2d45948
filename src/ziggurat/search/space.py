"""The settings that a search varies: those that follow from a config, or those that a file lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ziggurat.core.config import Config, parse_config, set_by_path
from ziggurat.core.errors import ConfigError, nearest, shorten
from ziggurat.core.untrusted import MAX_YAML_BYTES, Damage, parse_yaml, read_bytes
from ziggurat.embeddings.config import DIM_MULTIPLE
from ziggurat.interactions.mlp import MLP
from ziggurat.search.dimension import Choice, Dimension, Interval, as_text, dimension_of
from ziggurat.training.experiment import Experiment

Space = dict[str, Dimension]
"""Dotted key of the config -> its possible values."""

SECTIONS = ("embeddings", "model", "optimizer", "training")
"""The sections that a search may change; all trials share the prepared data and the figures that decide."""
_FIXED = ("training.monitor", "training.readers", "training.device")
_DROPOUTS = (0.0, 0.1, 0.2, 0.4)
_AVERAGES = (None, 0.99, 0.995, 0.999)
_L2 = Interval(1e-5, 0.1, log=True, beside=(0.0,))
_RATE_FACTOR = 8.0
"""How far learning rates are varied to either side."""
_MLPS = ("deep", "top", "first", "head.bottom", "head.expert")
"""Where a model has its largest MLP; the first of these that it has is varied."""
_LAYERS = ("layers", "cross_layers")


def default_space(experiment: Experiment) -> Space:
    """Returns the space that follows from a config; each dimension holds the config's own value.

    Vectors of half and double the width; learning rates within a factor of 8; L2 of vectors from 1e-5 to 0.1, or none;
    dropout of vectors and of the model's MLP; its layers of half and double the width; one interaction layer more and
    one less; batches of half and double the size; weight averages of 100 to 1,000 steps, or none. What the model lacks
    is left out.
    """
    space: Space = {}
    dim = experiment.embeddings.dim
    if experiment.width == dim:  # else the model determines it
        halves = max(DIM_MULTIPLE, dim // 2 // DIM_MULTIPLE * DIM_MULTIPLE)
        space["embeddings.dim"] = _choice(dim, halves, 2 * dim)
    for key in ("embeddings.optimizer", "optimizer"):
        lr = _at(experiment, f"{key}.lr")
        if isinstance(lr, float | int) and lr > 0:
            space[f"{key}.lr"] = Interval(float(lr) / _RATE_FACTOR, float(lr) * _RATE_FACTOR, log=True)
    l2 = experiment.embeddings.l2
    inside = l2 == 0 or _L2.low <= l2 <= _L2.high
    space["embeddings.l2"] = _L2 if inside else Interval(min(l2, _L2.low), max(l2, _L2.high), True, (0.0,))
    space["embeddings.dropout"] = _choice(experiment.embeddings.dropout, *_DROPOUTS)
    for key in _MLPS:
        mlp = _at(experiment.model, key)
        if isinstance(mlp, MLP.Config) and mlp.hidden:
            space[f"model.{key}.dropout"] = _choice(mlp.dropout, *_DROPOUTS)
            sizes = [[max(1, round(width * factor)) for width in mlp.hidden] for factor in (0.5, 1, 2)]
            space[f"model.{key}.hidden"] = Choice(tuple(_each_once(sizes)))
            break
    for key in _LAYERS:
        layers = getattr(experiment.model, key, None)
        if isinstance(layers, int) and layers >= 1:
            space[f"model.{key}"] = _choice(layers, max(1, layers - 1), layers + 1)
    batch = experiment.training.batch_size
    space["training.batch_size"] = _choice(batch, max(1, batch // 2), 2 * batch)
    if experiment.planning.beyond_memory is None:
        average = experiment.training.weight_average
        numbers = sorted({each for each in (average, *_AVERAGES) if each is not None})
        space["training.weight_average"] = Choice((None, *numbers))
    return space


def read_space(path: Path, experiment: Experiment) -> Space:
    """Returns the space that a YAML file lists below ``search: space:``.

    Raises:
        ConfigError: the file cannot be read, a key is none of the config's, or a value is not allowed there.
    """
    damage = Damage(ConfigError, "correct the YAML at that line")
    try:
        text = read_bytes(
            path, Damage(ConfigError, "give a readable UTF-8 YAML file"), limit=MAX_YAML_BYTES, follow=True
        )
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file", "name a YAML file with search: space: keys and their values"
        ) from None
    given = _below(parse_yaml(text, path, damage), ("search", "space"), str(path))
    space: Space = {}
    for key, written in given.items():
        where = f"{path}: search.space.{key}"
        _check_section(key, where)
        space[key] = dimension_of(written, where)
        for value in space[key].ends:
            try:
                with_settings(experiment, {key: value}, where).check()
            except ConfigError as error:
                problem = error.problem.removeprefix("--set ").removeprefix(f"{where}: ")
                raise ConfigError(f"{where}: {problem}", error.hint) from None
        _check_values(experiment, key, space[key], where)
    for key in space:
        parent = next((other for other in space if key.startswith(f"{other}.")), None)
        if parent is not None:
            raise ConfigError(
                f"{path}: search.space.{key}: {parent} is varied as well, and holds it",
                f"leave one of them out; the values of {parent} may each have one for {key.removeprefix(parent)[1:]}",
            )
    return space


def _check_values(experiment: Experiment, key: str, dimension: Dimension, where: str) -> None:
    """Raises ConfigError if a whole number between the ends is not allowed, or two values of a list are the same."""
    for value in dimension.inner:
        if not _is_allowed(experiment, key, value):
            allowed = [each for each in _doubled(dimension.ends) if _is_allowed(experiment, key, each)]
            raise ConfigError(
                f"{where}: not all whole numbers between {dimension.ends[0]} and {dimension.ends[1]} are possible, "
                f"{value} is not",
                f"write a list, such as {allowed}",
            )
    meant: dict[str, Any] = {}
    for value in dimension.ends if isinstance(dimension, Choice) else []:
        same = meant.setdefault(as_text(_meant(experiment, key, value)), value)
        if same is not value:
            raise ConfigError(f"{where}: {shorten(same)} and {shorten(value)} are the same", "leave one of them out")


def _is_allowed(experiment: Experiment, key: str, value: Any) -> bool:
    try:
        with_settings(experiment, {key: value}).check()
    except ConfigError:
        return False
    return True


def _doubled(ends: list[Any]) -> Iterator[int]:
    """Yields the lower end, doubled again and again up to the upper one, and that."""
    value, high = max(1, int(ends[0])), int(ends[1])
    while value < high:
        yield value
        value *= 2
    yield high


def with_settings(experiment: Experiment, settings: Mapping[str, Any], source: str = "search") -> Experiment:
    """Returns the experiment with other values for some keys.

    Raises:
        ConfigError: a key or a value is not allowed; the message suggests the nearest key.
    """
    values = experiment.model_dump(mode="json")
    for key, value in settings.items():
        set_by_path(values, key, value)
    return parse_config(Experiment, json.loads(json.dumps(values)), source)


def own_settings(experiment: Experiment, space: Space) -> dict[str, Any]:
    """Returns the values that the config itself has for the keys of the space, as its lists write them."""
    values = experiment.model_dump(mode="json")
    own = {key: _plain(values, key) for key in space}
    for key, dimension in space.items():
        if isinstance(dimension, Choice) and dimension.number(own[key]) is None:
            given = (each for each in dimension.values if isinstance(each, dict | list))
            same = (each for each in given if as_text(_meant(experiment, key, each)) == as_text(own[key]))
            own[key] = next(same, own[key])
    return own


def _meant(experiment: Experiment, key: str, value: Any) -> Any:
    """Returns a value as the config has it: with the defaults of what it leaves out."""
    return _plain(with_settings(experiment, {key: value}).model_dump(mode="json"), key)


def _check_section(key: Any, where: str) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{where}: received the key {shorten(key)}", "keys are dotted text, as in optimizer.lr")
    section = key.partition(".")[0]
    if any(f"{key}.".startswith(f"{fixed}.") for fixed in _FIXED):
        raise ConfigError(f"{where}: is the same in all trials, which are compared", "leave it out")
    held = [fixed for fixed in _FIXED if fixed.startswith(f"{key}.")]
    if held:
        raise ConfigError(
            f"{where}: holds {', '.join(held)}, which are the same in all trials, which are compared",
            f"vary its keys one by one, as in {key}.batch_size: [256, 512]",
        )
    if section in SECTIONS:
        return
    if section in Experiment.model_fields:
        raise ConfigError(
            f"{where}: {section} is the same in all trials, which share the prepared data and their evaluation",
            f"vary keys of {', '.join(SECTIONS)}; for other data, search with another config",
        )
    close = nearest(section, SECTIONS)
    hint = f"did you mean {close}.{key.partition('.')[2]}?" if close else f"a key begins with {', '.join(SECTIONS)}"
    raise ConfigError(f"{where}: there is no section {section!r}", hint)


def _below(values: Any, steps: tuple[str, ...], where: str) -> dict[str, Any]:
    """Returns the mapping below nested keys that stand alone."""
    for step in steps:
        found = cast("dict[str, Any]", values) if isinstance(values, dict) else {}
        if list(found) != [step]:
            raise ConfigError(
                f"{where}: expected the key {step} alone, received {shorten(values)}",
                "write search: {space: {optimizer.lr: {log: [3e-4, 3e-3]}}}",
            )
        where, values = f"{where}: {step}", found[step]
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"{where}: lists no keys", "write as in optimizer.lr: {log: [3e-4, 3e-3]}")
    return cast("dict[str, Any]", values)


def _at(config: Config, path: str) -> Any:
    found: Any = config
    for step in path.split("."):
        found = getattr(found, step, None)
    return found


def _plain(values: Any, path: str) -> Any:
    """Returns the value at a dotted path of plain values; None if there is none."""
    for step in path.split("."):
        if isinstance(values, list):
            items = cast("list[Any]", values)
            named = [each for each in items if isinstance(each, dict) and each.get("name") == step]
            values = items[int(step)] if step.isdigit() and int(step) < len(items) else named[0] if named else None
        else:
            values = cast("dict[str, Any]", values).get(step) if isinstance(values, dict) else None
    return values


def _choice(own: float, *others: float) -> Choice:
    return Choice(tuple(_each_once(sorted({own, *others}))))


def _each_once(values: list[Any]) -> Iterator[Any]:
    for place, value in enumerate(values):
        if value not in values[:place]:
            yield value
