"""One case of the benchmark ``p3s``: all methods on one split of one table, with equal budgets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from bench.quality.tabular.labelled import split
from bench.quality.tabular.sets import TABLES
from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.downstream import (
    LogisticRegressionTask,
    MLPTask,
    fitted_model,
    probabilities,
    score,
)
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.search import METHODS, MethodName, search_pipelines
from ziggurat.search.pipelines.table import Table
from ziggurat.training.signals import end_with_parent

FOLDS = 3
TASKS: Mapping[str, LogisticRegressionTask | MLPTask] = {
    "logistic_regression": LogisticRegressionTask(folds=FOLDS),
    "mlp": MLPTask(folds=FOLDS),
}
BUDGETS = {"logistic_regression": 60, "mlp": 30}
"""Cross-validated evaluations of each method, with those of its finalists."""
OURS = "cluster"

Outcome = dict[str, dict[str, Any]]
"""Method -> its figures."""


def measured(name: str, model: str, seed: int, folder: Path, data: Path | None) -> Outcome:
    """Returns the outcome of each method on one split; the search sees the training rows alone.

    Args:
        name: of the table.
        model: of :data:`TASKS`.
        seed: of the split, the folds, the searches and the downstream model.
        folder: where tables are kept.
        data: the folder of ``--data``.
    """
    table = next(each for each in TABLES if each.name == name).load(folder, data)
    return compared(table, TASKS[model], BUDGETS[model], seed)


def begin(parent: int) -> None:
    """Leaves this process one thread, as cases are measured beside each other; it ends when its parent is gone."""
    torch.set_num_threads(1)
    threadpool_limits(1)
    end_with_parent(parent)


def compared(
    table: Table,
    task: LogisticRegressionTask | MLPTask,
    budget: int,
    seed: int,
    methods: Sequence[MethodName] = METHODS,
) -> Outcome:
    """Returns, of each method, the score on test rows and what the search believed.

    Keys: ``test`` (the task's metric), ``accuracy`` on test rows, ``fresh`` and ``chosen``: cross-validated on folds
    that did not choose and on those that did, ``evaluations``, ``seconds``, and ``pipelines``, how many different ones.

    Raises:
        KeyboardInterrupt: a signal stopped a search.
    """
    train, test = split(table, seed)
    found: Outcome = {}
    for method in methods:
        began = time.monotonic()
        searched = search_pipelines(train, task, method=method, budget=budget, seed=seed)
        seconds = time.monotonic() - began
        if searched.signal is not None:
            raise KeyboardInterrupt
        scores = held_out(searched.pipelines, task, train, test, seed)
        found[method] = {
            **scores,
            "fresh": searched.score,
            "chosen": searched.search_score,
            "evaluations": searched.evaluations,
            "seconds": round(seconds, 2),
            "pipelines": len(set(searched.pipelines.values())),
        }
    return found


def held_out(
    pipelines: Mapping[str, AnyPipeline], task: LogisticRegressionTask | MLPTask, train: Table, test: Table, seed: int
) -> dict[str, float]:
    """Returns the scores on test rows of pipelines and a model that are fitted on all training rows."""
    blocks = [
        fitted_block(
            pipelines[each.name], input_of(each, pipelines[each.name]), train.labels,
            input_of(test.column(each.name), pipelines[each.name]),
        )[:2]
        for each in train.columns
    ]  # fmt: skip
    x_train, x_test = (np.concatenate([each[side] for each in blocks], axis=1) for side in (0, 1))
    model = fitted_model(task, x_train, train.labels, len(train.classes), seed)
    predicted = probabilities(model, x_test, len(train.classes))
    return {"test": score(task.metric, predicted, test.labels), "accuracy": score("accuracy", predicted, test.labels)}
