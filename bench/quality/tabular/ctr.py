"""CTR models on the configs that searches of pipelines write, for the benchmark ``p3s``.

The searches judge pipelines by logistic regression on the log's table, which is quick; the model that is trained on
what they return, and judged on test rows, is another one. So the figures say whether pipelines carry over to a CTR
model.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.quality.tabular.labelled import split
from bench.quality.tabular.measured import FOLDS, Outcome
from bench.quality.tabular.sets import LOGS
from ziggurat.core.config import parse_config
from ziggurat.core.temporary import temporary_folder
from ziggurat.features.config import CategoricalFeature, NumericFeature
from ziggurat.search.pipelines.downstream import LogisticRegressionTask
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.features_section import features_of
from ziggurat.search.pipelines.search import METHODS, MethodName, search_pipelines
from ziggurat.search.pipelines.table import Column, Table
from ziggurat.training.experiment import Experiment
from ziggurat.training.train import train

BUDGET = 40
_VALIDATION = 0.15


def measured_log(name: str, seed: int, folder: Path, data: Path | None) -> Outcome:
    """Returns, of each method, AUC (``test``) and NE (``ne``) on test rows of a DeepFM trained on its config.

    Args:
        name: of the log.
        seed: of the split, the folds, the searches and the training.
        folder: where tables are kept.
        data: the folder of ``--data``.

    Raises:
        KeyboardInterrupt: a signal stopped a search or a training.
    """
    table = next(each for each in LOGS if each.name == name).load(folder, data)
    return compared_on_log(table, seed, BUDGET, folder)


def compared_on_log(
    table: Table, seed: int, budget: int, folder: Path, methods: Sequence[MethodName] = METHODS, **training: Any
) -> Outcome:
    """Returns the same of a table and some methods; ``training`` changes settings of the training."""
    kept, held = split(table, seed)
    found: Outcome = {}
    with temporary_folder("ctr-", folder) as temporary:
        log = temporary.path / "log"
        log.mkdir()
        frame_of(kept).write_csv(log / "train.csv")
        frame_of(held).write_csv(log / "test.csv")
        for method in methods:
            began = time.monotonic()
            searched = search_pipelines(
                kept, LogisticRegressionTask(folds=FOLDS), method=method, budget=budget, seed=seed
            )
            seconds = time.monotonic() - began
            experiment = experiment_of(kept, searched.pipelines, log, seed, training)
            outcome = None if searched.signal is not None else train(experiment, run_folder=temporary.path / method)
            if outcome is None or outcome.results is None:
                raise KeyboardInterrupt
            figures = outcome.results["figures"]["test"]
            found[method] = {
                "test": figures["auc"], "ne": figures["ne"], "fresh": searched.score, "chosen": searched.search_score,
                "evaluations": searched.evaluations, "seconds": round(seconds, 2),
                "pipelines": len(set(searched.pipelines.values())),
            }  # fmt: skip
    return found


def frame_of(table: Table) -> pl.DataFrame:
    """Returns the table as columns of a log, with the label last."""
    columns = {each.name: _texts(each) if each.kind == "categorical" else _numbers(each) for each in table.columns}
    return pl.DataFrame({**columns, "label": table.labels})


def experiment_of(
    table: Table, pipelines: Mapping[str, AnyPipeline], log: Path, seed: int, training: Mapping[str, Any]
) -> Experiment:
    """Returns the config of a DeepFM with one pipeline for each column."""
    features: list[dict[str, Any]] = []
    for column in table.columns:
        feature = (
            CategoricalFeature(name=column.name) if column.kind == "categorical" else NumericFeature(name=column.name)
        )
        features += features_of(feature, pipelines[column.name])
    values: dict[str, Any] = {
        "name": table.name,
        "data": {
            "folder": str(log),
            "source": {"name": "csv", "files": ["train.csv"]},
            "split": {"name": "files", "validation": _VALIDATION, "test": ["test.csv"]},
            "labels": [{"name": "label"}],
        },
        "features": features,
        "embeddings": {"dim": 8, "optimizer": {"name": "rowwise_adagrad", "lr": 0.05}},
        "model": {"name": "deepfm", "deep": {"hidden": [64, 32]}},
        "training": {"batch_size": 128, "epochs": 10, "seed": seed, "threads": 1, **training},
    }
    return parse_config(Experiment, values)


def _texts(column: Column) -> list[str | None]:
    return [None if code < 0 else column.categories[int(code)] for code in column.values]


def _numbers(column: Column) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in column.values]
