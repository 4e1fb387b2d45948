"""The model sizes of a scaling sweep: one experiment with growing models, and what each of them costs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch

from ziggurat.contracts.modules import MAX_WEIGHTS
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.schema import Schema
from ziggurat.core.untrusted import Damage, read_yaml
from ziggurat.embeddings.fields import Fields, total_flops
from ziggurat.embeddings.layout import Layout
from ziggurat.interactions.counted_flops import FlopsUnknown
from ziggurat.models.build import growing_models
from ziggurat.models.model import Model
from ziggurat.parallel.own_random import OwnRandom
from ziggurat.training.experiment import Experiment

MAX_SIZES = 128
"""The largest number of sizes that are grown from a model. Widths exceed any machine's memory long before this number,
and the range of floats soon after it."""
MAY_CHANGE = ("model", "embeddings", "optimizer", "training")
"""Sections of the config that may differ between sizes; all sizes share the data."""
WEIGHT_BYTES, GIB = 4, 2**30


@dataclass(frozen=True, slots=True)
class Size:
    """The cost of a model.

    Attributes:
        flops: the forward FLOPs per example, of the model and of computing its fields from the table rows.
        dense_parameters: the number of parameters outside the embedding tables.
        table_parameters: the number of parameters in the embedding tables.
    """

    flops: int
    dense_parameters: int
    table_parameters: int


@dataclass(frozen=True, slots=True)
class SizedExperiment:
    """One model size of the sweep.

    Attributes:
        number: the position of the size in the sweep, counted from 1.
        experiment: the experiment with the model of this size.
        size: the cost of that model.
    """

    number: int
    experiment: Experiment
    size: Size


def grown_experiments(experiment: Experiment, count: int) -> list[Experiment]:
    """Returns the experiment with its model and with the larger sizes that the model defines.

    Args:
        experiment: the experiment with the smallest model.
        count: the number of sizes; if it exceeds :data:`MAX_SIZES`, only so many are returned.

    Raises:
        ConfigError: the model defines no larger sizes.
    """
    models = growing_models(experiment.model, min(count, MAX_SIZES))
    return [experiment.model_copy(update={"model": model}) for model in models]


def listed_experiments(experiment: Experiment, path: Path) -> list[Experiment]:
    """Returns the experiment with the changes of each entry of a list in a YAML file.

    An entry looks like ``- {model.layers: 4, optimizer.lr: 0.001}``. Its keys are those of ``--set``; a section with a
    ``name`` replaces the whole section.

    Args:
        experiment: the experiment that the changes are applied to.
        path: the YAML file.

    Raises:
        ConfigError: the file holds no list of changes, or an entry changes a section that all sizes share, or sets a
            value that is not allowed.
    """
    experiments: list[Experiment] = []
    for number, changes in enumerate(_read(path), 1):
        where = f"{path}, size {number}"
        values: dict[str, Any] = experiment.model_dump(mode="json")
        for key, value in _leaves(changes):
            if key.partition(".")[0] not in MAY_CHANGE:
                raise ConfigError(
                    f"{where}: {key}: sizes may differ only in {', '.join(MAY_CHANGE)}",
                    "start each key with one of these sections, as in model.layers",
                )
            try:
                set_by_path(values, key, value)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error.problem.removeprefix('--set ')}", error.hint) from None
        experiments.append(parse_config(Experiment, values, where))
    return experiments


def sized_experiments(experiments: list[Experiment], schema: Schema) -> list[SizedExperiment]:
    """Returns the experiments with their sizes, numbered from 1.

    Args:
        experiments: the experiments, by growing size.
        schema: the schema of the prepared data.

    Raises:
        ConfigError: a size costs no more than the one before it or is too large for this machine, or its model cannot
            work on this data.
    """
    sizes: list[SizedExperiment] = []
    for number, each in enumerate(experiments, 1):
        sizes.append(SizedExperiment(number, each, _size_within_memory(number, each, schema)))
    for smaller, larger in pairwise(sizes):
        if larger.size.flops <= smaller.size.flops:
            raise ConfigError(
                f"size {larger.number} costs {larger.size.flops:,} FLOPs per example, no more than the "
                f"{smaller.size.flops:,} of size {smaller.number}",
                "list sizes in growing order; growing a model without a list requires hidden layers that can grow",
            )
    return sizes


def size_of(experiment: Experiment, schema: Schema) -> Size:
    """Returns the cost of the experiment's model on data of this schema, without allocating any weight.

    Weights are allocated only if a part from outside the package needs them for its FLOPs to be counted.

    Raises:
        ConfigError: the model cannot work with these features.
        FlopsUnknown: a part from outside the package does not state its FLOPs, and they cannot be counted.
    """
    layout = experiment.layout(schema)
    with torch.device("meta"):
        model, fields = experiment.build_model(layout), Fields(layout)
    try:
        return _size(layout, model, fields)
    except FlopsUnknown:
        if sum(parameter.numel() for part in (model, fields) for parameter in part.parameters()) > MAX_WEIGHTS:
            raise
    with OwnRandom(0):
        return _size(layout, experiment.build_model(layout), Fields(layout))


def _size(layout: Layout, model: Model, fields: Fields) -> Size:
    costs = fields.costs()
    parameters = model.parameter_count() + sum(cost.parameters for cost in costs)
    tables = sum(table.rows * table.dim for table in layout.tables)
    return Size(model.flops() + total_flops(costs), parameters, tables)


def _size_within_memory(number: int, experiment: Experiment, schema: Schema) -> Size:
    """Returns the cost of a size; raises if its dense weights alone exceed this machine's memory."""
    smaller = "start with a smaller model, or list smaller sizes with --sizes-file FILE"
    hint = f"ask for fewer sizes: --sizes {number - 1} at most; or {smaller}" if number > 3 else smaller
    try:
        size = size_of(experiment, schema)
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):
            raise
        raise ConfigError(f"size {number} has layers of more weights than 64 bits can count", hint) from None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if WEIGHT_BYTES * size.dense_parameters > memory:
        raise ConfigError(
            f"size {number} costs {size.flops:.3g} FLOPs per example and {size.dense_parameters:.3g} dense parameters: "
            f"{WEIGHT_BYTES * size.dense_parameters / GIB:,.0f} GiB of weights, and this machine has "
            f"{memory / GIB:,.0f} GiB of memory",
            hint,
        )
    return size


def _read(path: Path) -> list[Mapping[str, Any]]:
    """Returns the entries of the YAML list in a file.

    Raises:
        ConfigError: the file is missing, cannot be read or holds something else.
    """
    if not path.exists() or path.is_dir():
        what = "is a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"{path}: {what}", "name a YAML file with --sizes-file that lists the changes of each size")
    values = read_yaml(path, Damage(ConfigError, "write a YAML list with the changes of each size"), follow=True)
    entries = cast("list[Any]", values) if isinstance(values, list) else []
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(
            f"{path}: expected a list with the changes of each size, received {shorten(values)}",
            "write one line per size, as in `- {model.layers: 2}`, then `- {model.layers: 4}`",
        )
    return entries


def _leaves(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the dotted key and the value of each change; a section with a ``name`` is one value."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and "name" not in value:
            yield from _leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
