"""Trains the baselines on a dataset's columns and returns them as rows of the comparison.

Tuning them can take longer than training the model, and their results do not change between two reports of a run. So
each result is stored in the run folder as soon as it is available: an interrupted report continues with the next one.
"""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress
from ziggurat.core.schema import WEIGHT_COLUMN, Schema, label_column
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.encoded.dataset import Dataset, Split
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.report.baselines.store import BaselineStore
from ziggurat.report.baselines.train import (
    BASELINES,
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
        seed: the seed of subsampling and training.
        store: the baselines of earlier reports; newly trained ones are added.
        progress: receives progress.
        notes: gets a sentence if the baselines saw fewer rows than our model, or could not be trained or stored.
    """
    rows: list[ComparisonRow] = []
    for row in ours:
        rows.append(row)
        data: BaselineData | None = None
        for baseline in BASELINES:
            key = _key(baseline, dataset, evaluated, row.task, seed)
            if key not in store:
                try:
                    data = data or _data(dataset, evaluated, row.task)
                    result = baseline.fit(data, seed, machine_threads(), progress=progress)
                except DataError as error:
                    notes.append(f"No baselines for {row.task}: {error.problem}")
                    break
                store.add(key, _evaluate(result, row.task, data.test), _subsampling_notes(dataset, evaluated, data))
            stored_row, stored_notes = store[key]
            rows.append(stored_row)
            notes.extend(note for note in stored_notes if note not in notes)
    if store.damage is not None:
        notes.append(f"The baselines were trained again: {store.damage}")
    if store.problem is not None:
        notes.append(f"The next report has to train the baselines again: {store.problem}")
    return rows


def _evaluate(result: BaselineResult, task: str, evaluated: BaselineSplit) -> ComparisonRow:
    metrics = BinaryMetrics()
    metrics.update(result.logits_B.astype(np.float32), evaluated.labels_B, evaluated.weights_B)
    return ComparisonRow(task, result.name, False, metrics.compute(), result.seconds, result.description)


def _key(baseline: BaselineModel, dataset: Dataset, evaluated: Split, task: str, seed: int) -> str:
    """Returns a digest of everything that the baseline's metrics depend on."""
    content = [baseline.name, baseline.recipe, dataset.fingerprint, evaluated, task, seed, MAX_ROWS]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _data(dataset: Dataset, evaluated: Split, task: str) -> BaselineData:
    return BaselineData(*(_split(dataset, split, task) for split in ("train", "validation", evaluated)))


def _split(dataset: Dataset, name: Split, task: str) -> BaselineSplit:
    blocks = dataset.split(name)
    step = max(1, math.ceil(blocks.rows / MAX_ROWS))
    columns = Columns([blocks.read(block) for block in range(0, len(blocks.blocks), step)], dataset.schema)
    return _baseline_split(columns, dataset.schema, task)


def _subsampling_notes(dataset: Dataset, evaluated: Split, data: BaselineData) -> list[str]:
    """Returns a sentence for each split of which the baselines saw only some blocks."""
    pairs: dict[Split, BaselineSplit] = {"train": data.train, "validation": data.validation, evaluated: data.test}
    return [
        f"The baselines got {len(seen):,} of {dataset.split(name).rows:,} {name} rows, one block in "
        f"{math.ceil(dataset.split(name).rows / MAX_ROWS)}; our own metrics are on all of them."
        for name, seen in pairs.items()
        if dataset.split(name).rows > len(seen)
    ]


def _baseline_split(columns: Columns, schema: Schema, task: str) -> BaselineSplit:
    dense_FB = [columns.flat(name) for name in schema.dense]
    return BaselineSplit(
        dense_BF=np.stack(dense_FB, axis=1) if dense_FB else np.zeros((columns.rows, 0), np.float32),
        categorical={name: columns.flat(name) for name in schema.categorical},
        bags={
            name: JaggedColumn(jagged.offsets, jagged.values)
            for name in (*schema.bags, *schema.sequences)
            for jagged in (columns.jagged(name),)
        },
        labels_B=columns.flat(label_column(task)),
        weights_B=columns.flat(WEIGHT_COLUMN) if schema.has_weight else None,
    )
