"""Trains the baselines on a dataset's columns and returns them as rows of the comparison.

Tuning them can take longer than training the model, and their results do not change between two reports of a run. So
each result is stored in the run folder as soon as it is available: an interrupted report continues with the next one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress
from ziggurat.core.schema import WEIGHT_COLUMN, Schema, count_column, label_column
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset, Split
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.several_columns import CrossedFeature
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.task_metrics import TaskMetrics, new_metrics
from ziggurat.objectives.losses import Log1p, Poisson, Tweedie
from ziggurat.objectives.task import Task
from ziggurat.report.baselines.data import fitted_task
from ziggurat.report.baselines.store import BaselineStore
from ziggurat.report.baselines.train import (
    BASELINES,
    VALUE_BASELINES,
    BaselineData,
    BaselineModel,
    BaselineResult,
    BaselineSplit,
    JaggedColumn,
    machine_threads,
)
from ziggurat.report.inputs import ComparisonRow

MAX_ROWS = 4_000_000
"""Most rows of a split that the baselines get; they hold them in memory."""


def compare(
    dataset: Dataset,
    evaluated: Split,
    ours: list[ComparisonRow],
    tasks: Sequence[Task],
    seed: int,
    store: BaselineStore,
    progress: Progress,
    notes: list[str],
) -> list[ComparisonRow]:
    """Returns, for each task, our row followed by that of each baseline.

    Args:
        dataset: the encoded dataset.
        evaluated: the split on which all models are evaluated.
        ours: our model's row for each task.
        tasks: the tasks of these rows.
        seed: the seed of subsampling and training.
        store: the baselines of earlier reports; newly trained ones are added.
        progress: receives progress.
        notes: gets a sentence if the baselines saw fewer rows than our model, or could not be trained or stored.
    """
    rows: list[ComparisonRow] = []
    for row, task in zip(ours, tasks, strict=True):
        rows.append(row)
        data: BaselineData | None = None
        for baseline in BASELINES if task.is_probability else VALUE_BASELINES:
            key = _key(baseline, dataset, evaluated, task, seed)
            if key not in store:
                try:
                    data = data or baseline_data(dataset, evaluated, task)
                    result = baseline.fit(data, seed, machine_threads(), progress=progress)
                except DataError as error:
                    notes.append(f"No baselines for {row.task}: {error.problem}")
                    break
                store.add(key, evaluate_baseline(result, task, data.test), _left_out_notes(dataset, evaluated, data))
            stored_row, stored_notes = store[key]
            rows.append(stored_row)
            notes.extend(note for note in stored_notes if note not in notes)
    if store.damage is not None:
        notes.append(f"The baselines were trained again: {store.damage}")
    if store.problem is not None:
        notes.append(f"The next report has to train the baselines again: {store.problem}")
    return rows


def evaluate_baseline(result: BaselineResult, task: Task, evaluated: BaselineSplit) -> ComparisonRow:
    """Returns the figures of a baseline's predictions of a split."""
    if task.is_probability:
        metrics: TaskMetrics = new_metrics(task, MetricsConfig(), grouped=False)
        columns: npt.NDArray[np.float64] = result.logits_B + math.log(task.known_rate)
        dropped: set[str] = set()
    else:
        fitted = fitted_task(task)
        metrics, columns = (
            new_metrics(fitted, MetricsConfig(), grouped=False),
            task_columns(fitted, result.predictions_B),
        )
        dropped = {"relative_loss"} if fitted != task else set()  # of another loss than ours
    rows, finite_B = metrics.read(columns.astype(np.float32), evaluated.labels_B, evaluated.weights_B)
    metrics.add(rows.take(finite_B), int((~finite_B).sum()))
    figures = {name: value for name, value in metrics.compute().items() if name not in dropped}
    return ComparisonRow(task.name, result.name, False, figures, result.seconds, result.description)


def task_columns(task: Task, predictions_B: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns the columns (B, C) of a task from which its metrics get these predictions."""
    predictions = predictions_B.reshape(len(predictions_B), -1)
    match task.loss:
        case Log1p():
            return np.log1p(predictions)
        case Poisson() | Tweedie():
            return np.log(np.maximum(predictions, np.finfo(np.float64).tiny))
        case _:
            return predictions


def _key(baseline: BaselineModel, dataset: Dataset, evaluated: Split, task: Task, seed: int) -> str:
    """Returns a digest of everything that the baseline's metrics depend on."""
    content: list[Any] = [baseline.name, baseline.recipe, dataset.fingerprint, evaluated, task.name, seed, MAX_ROWS]
    if task.kind != "binary" or task.known_rate != 1:
        loss = None if task.loss is None else task.loss.model_dump(mode="json")
        content.append([task.kind, loss, task.known_rate])
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def baseline_data(dataset: Dataset, evaluated: Split, task: Task) -> BaselineData:
    """Returns the columns of a dataset for the baselines of a task; ``evaluated`` is the split that they predict.

    Crossed features are left out: trees combine columns by themselves, and cannot split on as many values.
    """
    left_out = crossed_features(dataset)
    train, validation, test = (
        _split(dataset, split, task.name, left_out) for split in ("train", "validation", evaluated)
    )
    return BaselineData(train, validation, test, task)


def crossed_features(dataset: Dataset) -> list[str]:
    """Returns the names of the crossed features of a dataset."""
    features = SavedTransform.open(dataset.folder / ENCODERS).features
    return [each.name for each in features if isinstance(each, CrossedFeature)]


def _split(dataset: Dataset, name: Split, task: str, left_out: Collection[str]) -> BaselineSplit:
    blocks = dataset.split(name)
    step = max(1, math.ceil(blocks.rows / MAX_ROWS))
    columns = Columns([blocks.read(block) for block in range(0, len(blocks.blocks), step)], dataset.schema)
    return _baseline_split(columns, dataset.schema, task, left_out)


def _left_out_notes(dataset: Dataset, evaluated: Split, data: BaselineData) -> list[str]:
    """Returns what the baselines did not see: a sentence for crosses, one for each split of which they saw a part."""
    pairs: dict[Split, BaselineSplit] = {"train": data.train, "validation": data.validation, evaluated: data.test}
    crossed = crossed_features(dataset)
    left_out = f"The baselines got the columns of {', '.join(map(repr, crossed))}, but not their combinations."
    return [left_out] * bool(crossed) + [
        f"The baselines got {len(seen):,} of {dataset.split(name).rows:,} {name} rows, one block in "
        f"{math.ceil(dataset.split(name).rows / MAX_ROWS)}; our own metrics are on all of them."
        for name, seen in pairs.items()
        if dataset.split(name).rows > len(seen)
    ]


def _baseline_split(columns: Columns, schema: Schema, task: str, left_out: Collection[str] = ()) -> BaselineSplit:
    dense_FB = [columns.flat(name) for name in schema.dense]
    weights_B = columns.flat(WEIGHT_COLUMN) if schema.has_weight else None
    if task in schema.counted:
        counts_B = columns.flat(count_column(task))
        weights_B = counts_B if weights_B is None else weights_B * counts_B
    return BaselineSplit(
        dense_BF=np.stack(dense_FB, axis=1) if dense_FB else np.zeros((columns.rows, 0), np.float32),
        categorical={name: columns.flat(name) for name in schema.categorical if name not in left_out},
        bags={
            name: JaggedColumn(jagged.offsets, jagged.values)
            for name in (*schema.bags, *schema.sequences)
            for jagged in (columns.jagged(name),)
        },
        labels_B=columns.flat(label_column(task)),
        weights_B=weights_B,
    )
