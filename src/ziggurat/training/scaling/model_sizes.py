"""The rungs of a ladder: one experiment in growing sizes, and what each size costs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.schema import Schema
from ziggurat.embeddings.fields import Fields
from ziggurat.models.build import growing_models, model_dims
from ziggurat.training.experiment import Experiment

MOST = 128
"""Rungs of a model's own ladder: long before, its widths are beyond any machine, and soon after beyond any float."""
MAY_CHANGE = ("model", "embeddings", "optimizer", "training")
"""Sections that a rung may change; all rungs share the data."""
WEIGHT_BYTES, GIB = 4, 2**30


@dataclass(frozen=True, slots=True)
class Size:
    """What a model costs.

    Attributes:
        flops: forward FLOPs per example, of the model and of what makes its fields from the rows.
        dense_parameters: of the model without its tables.
        table_parameters: floats of the embedding tables.
    """

    flops: int
    dense_parameters: int
    table_parameters: int


@dataclass(frozen=True, slots=True)
class SizedExperiment:
    """One size of the ladder; ``number`` counts from 1."""

    number: int
    experiment: Experiment
    size: Size


def grown_experiments(experiment: Experiment, count: int) -> list[Experiment]:
    """The experiment with the models of its model's own ladder; of more than 128 rungs, the first 128.

    Raises:
        ConfigError: the model has none.
    """
    return [
        experiment.model_copy(update={"model": model}) for model in growing_models(experiment.model, min(count, MOST))
    ]


def listed_experiments(experiment: Experiment, path: Path) -> list[Experiment]:
    """The experiment with the changes of each entry of a YAML list, as in ``- {model.layers: 4, optimizer.lr: 0.001}``.

    Keys are those of ``--set``; a section with a ``name`` replaces the whole section.

    Raises:
        ConfigError: not a list of changes, a section that rungs share, or values that are not allowed.
    """
    experiments: list[Experiment] = []
    for number, changes in enumerate(_read(path), 1):
        where = f"{path}, rung {number}"
        values: dict[str, Any] = experiment.model_dump(mode="json")
        for key, value in _leaves(changes):
            if key.partition(".")[0] not in MAY_CHANGE:
                raise ConfigError(
                    f"{where}: {key}: rungs share all but {', '.join(MAY_CHANGE)}",
                    "begin each key with one of these sections, as in model.layers",
                )
            try:
                set_by_path(values, key, value)
            except ConfigError as error:
                raise ConfigError(f"{where}: {error.problem.removeprefix('--set ')}", error.hint) from None
        experiments.append(parse_config(Experiment, values, where))
    return experiments


def measured_rungs(experiments: list[Experiment], schema: Schema) -> list[SizedExperiment]:
    """The experiments with their sizes.

    Raises:
        ConfigError: a rung costs no more than the one before it, is too large for this machine, or its model cannot
            work on this data.
    """
    rungs: list[SizedExperiment] = []
    for number, each in enumerate(experiments, 1):
        rungs.append(SizedExperiment(number, each, _size_within_memory(number, each, schema)))
    for smaller, larger in pairwise(rungs):
        if larger.size.flops <= smaller.size.flops:
            raise ConfigError(
                f"rung {larger.number} costs {larger.size.flops:,} FLOPs per example, no more than the "
                f"{smaller.size.flops:,} of rung {smaller.number}",
                "give rungs in growing size; the model's own ladder needs hidden layers that can grow",
            )
    return rungs


def size_of(experiment: Experiment, schema: Schema) -> Size:
    """What the experiment's model costs on data of this schema; no weight is drawn for it.

    Raises:
        ConfigError: the model cannot work with these features.
    """
    layout = experiment.layout(schema)
    with torch.device("meta"):
        model, fields = experiment.model.build(model_dims(layout)), Fields(layout).costs()
    flops, parameters = (sum(getattr(cost, name) for cost in fields) for name in ("flops", "parameters"))
    tables = sum(table.rows * table.dim for table in layout.tables)
    return Size(model.flops() + flops, model.parameter_count() + parameters, tables)


def _size_within_memory(number: int, experiment: Experiment, schema: Schema) -> Size:
    """The size of a rung; refused where its weights alone outgrow the machine's memory, or any."""
    smaller = "begin with a smaller model, or list smaller sizes with --sizes-file FILE"
    hint = f"ask for fewer rungs: --sizes {number - 1} at most; or {smaller}" if number > 3 else smaller
    try:
        size = size_of(experiment, schema)
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):
            raise
        raise ConfigError(f"rung {number} has layers of more weights than 64 bits can count", hint) from None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if WEIGHT_BYTES * size.dense_parameters > memory:
        raise ConfigError(
            f"rung {number} costs {size.flops:.3g} FLOPs per example and {size.dense_parameters:.3g} dense parameters: "
            f"{WEIGHT_BYTES * size.dense_parameters / GIB:,.0f} GiB of weights, and this machine has "
            f"{memory / GIB:,.0f} GiB of memory",
            hint,
        )
    return size


def _read(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise ConfigError(f"{path}: {what}", "name a YAML file with --sizes-file: a list of changes, one a rung")
    try:
        values = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        message = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as a ladder: {message}", "give a YAML list of changes") from None
    entries = cast("list[Any]", values) if isinstance(values, list) else []
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        raise ConfigError(
            f"{path}: expected a list of changes, one a rung, received {shorten(values)}",
            "write one line a rung, as in `- {model.layers: 2}`, then `- {model.layers: 4}`",
        )
    return entries


def _leaves(changes: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping) and "name" not in value:
            yield from _leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
