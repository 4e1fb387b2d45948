"""The data sets of ``checkpoint_bytes``, and the training on each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.benchmark import Context
from bench.contestant import ROOT
from bench.quality.checkpoint_runs import Intervals, TrainingSetup
from ziggurat.core.progress import Silent
from ziggurat.data.public.catalogue import find_dataset, get_dataset
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate, truth_file
from ziggurat.data.synthetic.shapes import criteo_shape

EXPONENT = 1.05
DIM = 64
MODEL = {"name": "deepfm", "deep": {"hidden": [32]}}
ROWS = 800_000
"""The rows of the generated log; 400,000 ids of its 26 columns occur, which makes 119 MB of tables."""
DIVISOR = 4
"""The divisor of the shape's cardinalities."""


def training_setups(context: Context, folder: Path) -> list[TrainingSetup]:
    """Returns the trainings to measure; in a smoke run there is only one, on a small generated log."""
    if context.quick:
        return [generated(folder, 6_000, 400, 256, (Intervals(3, 4),))]
    # In 40, 16 and 4 steps of 1,024 rows about 20, 10 and 4 % of the rows change; an epoch has 625 steps.
    found = [generated(folder, ROWS, DIVISOR, 1024, (Intervals(40, 14), Intervals(16, 24), Intervals(4, 24)))]
    found.append(movielens(context))
    if context.data is not None:
        found.append(frappe(context.data))
    return found


def generated(
    folder: Path, rows: int, divisor: int, batch_size: int, intervals: tuple[Intervals, ...]
) -> TrainingSetup:
    """Returns a training on a log of Criteo's shape, and generates the log in ``folder`` if it is missing.

    Args:
        folder: the folder of the log.
        rows: the rows of the log.
        divisor: the divisor of the shape's cardinalities.
        batch_size: the batch size.
        intervals: the intervals between checkpoints.
    """
    shape = criteo_shape(rows)
    columns = tuple(
        column.model_copy(
            update={"exponent": EXPONENT, "style": "integer", "cardinality": max(3, column.cardinality // divisor)}
        )
        for column in shape.categorical
    )
    config = shape.model_copy(update={"categorical": columns, "format": "parquet"})
    log = folder / "log.parquet"
    if _config_of(log) != config.model_dump(mode="json"):
        generate(config, log)
    description = (
        f"{rows:,} generated rows, 13 integers and 26 ids by Zipf({EXPONENT}), cardinalities of the shape criteo "
        f"divided by {divisor}; every id of the training rows has a row"
    )
    return TrainingSetup("criteo", _criteo(log, config), 1, batch_size, intervals, description)


def _criteo(log: Path, config: GeneratorConfig) -> dict[str, Any]:
    numbers = [
        {"name": c.name, "kind": "numeric", "transforms": [{"name": "log"}, {"name": "standardise"}]}
        for c in config.numeric
    ]
    vocabulary = {"name": "vocabulary", "min_count": 1}
    ids = [
        {"name": c.name, "kind": "categorical", "type": "integer", "encoder": vocabulary} for c in config.categorical
    ]
    return {
        "name": "criteo",
        "data": {
            "folder": str(log.parent),
            "source": {"name": "parquet", "files": [log.name]},
            "split": {"name": "random", "validation": 0.1, "test": 0.1},
            "labels": [{"name": "label"}],
        },
        "features": numbers + ids,
        "embeddings": {"dim": DIM, "optimizer": {"name": "rowwise_adagrad", "lr": 0.05}},
        "model": MODEL,
    }


def movielens(context: Context) -> TrainingSetup:
    """Returns a training on MovieLens-100K as in its example, with our width and model.

    An interval is a thirteenth of an epoch, or a step.
    """
    place = context.cache / "movielens-100k"
    get_dataset(find_dataset("movielens-100k"), place, Silent())
    values = _example("movielens", place, {"deep": {"hidden": [32], "dropout": 0.4}})
    return TrainingSetup("movielens", values, 6, 1024, (Intervals(6, 13), Intervals(1, 24)), "MovieLens-100K, 6 epochs")


def frappe(place: Path) -> TrainingSetup:
    """Returns a training on Frappe as in its example, with our width and model.

    An interval is a thirteenth of an epoch, or a step.

    Args:
        place: the folder of the Parquet files.
    """
    values = _example("frappe", place, {})
    return TrainingSetup("frappe", values, 4, 1024, (Intervals(15, 13), Intervals(1, 24)), "Frappe, 4 epochs")


def _example(name: str, place: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an experiment of ``examples/`` with our width and model, without its training section."""
    values = YAML(typ="safe").load((ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["training"]
    values["data"]["folder"] = str(place)
    values["embeddings"]["dim"] = DIM
    values["model"] = {**MODEL, **model}
    return values


def _config_of(log: Path) -> dict[str, Any] | None:
    """Returns the config from which the existing log was generated, or None."""
    try:
        return json.loads(truth_file(log).read_text(encoding="utf-8"))["config"] if log.exists() else None
    except FileNotFoundError:
        return None
