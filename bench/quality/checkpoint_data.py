"""The data sets of ``checkpoint_bytes``, and what is trained on each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.benchmark import Context
from bench.contestant import ROOT
from bench.quality.checkpoint_runs import Spans, Subject
from ziggurat.core.progress import Silent
from ziggurat.data.public.catalogue import find_dataset, get_dataset
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate, truth_file
from ziggurat.data.synthetic.shapes import criteo_shape

EXPONENT = 1.05
DIM = 64
MODEL = {"name": "deepfm", "deep": {"hidden": [32]}}
ROWS = 800_000
"""Of the generated log: of its 26 columns' ids four tenths of a million occur, 119 MB of tables."""
SMALLER = 4
"""Of the shape's cardinalities one such part."""


def subjects(context: Context, folder: Path) -> list[Subject]:
    """What is measured: of a smoke run a small generated log alone."""
    if context.quick:
        return [generated(folder, 6_000, 400, 256, (Spans(3, 4),))]
    # 40, 16 and 4 steps of 1,024 rows: some 20, 10 and 4 % of the rows; the training rows make 625 steps.
    found = [generated(folder, ROWS, SMALLER, 1024, (Spans(40, 14), Spans(16, 24), Spans(4, 24)))]
    found.append(movielens(context))
    if context.data is not None:
        found.append(frappe(context.data))
    return found


def generated(folder: Path, rows: int, smaller: int, batch_size: int, spans: tuple[Spans, ...]) -> Subject:
    """A log in ``folder``, made if it is not there, of Criteo's shape with its cardinalities divided by ``smaller``."""
    shape = criteo_shape(rows)
    columns = tuple(
        column.model_copy(
            update={"exponent": EXPONENT, "style": "integer", "cardinality": max(3, column.cardinality // smaller)}
        )
        for column in shape.categorical
    )
    config = shape.model_copy(update={"categorical": columns, "format": "parquet"})
    log = folder / "log.parquet"
    if _config_of(log) != config.model_dump(mode="json"):
        generate(config, log)
    description = (
        f"{rows:,} generated rows, 13 integers and 26 ids by Zipf({EXPONENT}), cardinalities of the shape criteo "
        f"divided by {smaller}; every id of the training rows has a row"
    )
    return Subject("criteo", _criteo(log, config), 1, batch_size, spans, description)


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


def movielens(context: Context) -> Subject:
    """MovieLens-100K as in its example, but for width and model; an interval is a thirteenth of an epoch, or a step."""
    place = context.cache / "movielens-100k"
    get_dataset(find_dataset("movielens-100k"), place, Silent())
    values = _example("movielens", place, {"deep": {"hidden": [32], "dropout": 0.4}})
    return Subject("movielens", values, 6, 1024, (Spans(6, 13), Spans(1, 24)), "MovieLens-100K, 6 epochs")


def frappe(place: Path) -> Subject:
    """Frappe as in its example, but for width and model; an interval is a thirteenth of an epoch, or a step.

    Args:
        place: folder of its Parquet files.
    """
    values = _example("frappe", place, {})
    return Subject("frappe", values, 4, 1024, (Spans(15, 13), Spans(1, 24)), "Frappe, 4 epochs")


def _example(name: str, place: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment of ``examples/``, of our width and model, without its training section."""
    values = YAML(typ="safe").load((ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
    del values["training"]
    values["data"]["folder"] = str(place)
    values["embeddings"]["dim"] = DIM
    values["model"] = {**MODEL, **model}
    return values


def _config_of(log: Path) -> dict[str, Any] | None:
    """What the existing log was generated from."""
    try:
        return json.loads(truth_file(log).read_text(encoding="utf-8"))["config"] if log.exists() else None
    except FileNotFoundError:
        return None
