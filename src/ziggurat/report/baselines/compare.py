"""The baselines, trained on a dataset's own columns, as rows of the comparison.

Tuning them can take longer than training the model did, and nothing about them changes between two reports of a run.
So each is kept in the run folder as soon as it is done: an interrupted report goes on with the next one.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

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
"""Rows of a split that the baselines are given; they hold them in memory."""


def compare(
    dataset: Dataset,
    judged: Split,
    ours: list[ComparisonRow],
    seed: int,
    kept: Path,
    progress: Progress,
    notes: list[str],
) -> list[ComparisonRow]:
    """``ours`` followed by each baseline, for each task.

    Args:
        judged: the split that all are judged on.
        ours: a row per task.
        kept: JSON file with the baselines of earlier reports; each that had to be trained is added.
        notes: a sentence is added where the baselines saw less than we did, could not be trained or not be kept.
    """
    store = BaselineStore(kept)
    rows: list[ComparisonRow] = []
    for row in ours:
        rows.append(row)
        data: BaselineData | None = None
        for baseline in BASELINES:
            key = _key(baseline, dataset, judged, row.task, seed)
            if key not in store:
                try:
                    data = data or _data(dataset, judged, row.task)
                    result = baseline.fit(data, seed, machine_threads(), progress=progress)
                except DataError as error:
                    notes.append(f"No baselines for {row.task}: {error.problem}")
                    break
                store.add(key, _judge(result, row.task, data.test), _seen_less(dataset, judged, data))
            found, said = store[key]
            rows.append(found)
            notes.extend(note for note in said if note not in notes)
    if store.problem is not None:
        notes.append(f"The next report has to train the baselines again: {store.problem}")
    return rows


def _judge(result: BaselineResult, task: str, judged: BaselineSplit) -> ComparisonRow:
    metrics = BinaryMetrics()
    metrics.update(result.logits_B.astype(np.float32), judged.labels_B, judged.weights_B)
    return ComparisonRow(task, result.name, False, metrics.compute(), result.seconds, result.description)


def _key(baseline: BaselineModel, dataset: Dataset, judged: Split, task: str, seed: int) -> str:
    """Of all that the baseline's figures depend on."""
    content = [baseline.name, baseline.recipe, dataset.fingerprint, judged, task, seed, MAX_ROWS]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _data(dataset: Dataset, judged: Split, task: str) -> BaselineData:
    return BaselineData(*(_split(dataset, split, task) for split in ("train", "validation", judged)))


def _split(dataset: Dataset, name: Split, task: str) -> BaselineSplit:
    blocks = dataset.split(name)
    step = max(1, math.ceil(blocks.rows / MAX_ROWS))
    columns = Columns([blocks.read(block) for block in range(0, len(blocks.blocks), step)], dataset.schema)
    return _baseline_split(columns, dataset.schema, task)


def _seen_less(dataset: Dataset, judged: Split, data: BaselineData) -> list[str]:
    """A sentence for each split of which the baselines saw only some blocks."""
    pairs: dict[Split, BaselineSplit] = {"train": data.train, "validation": data.validation, judged: data.test}
    return [
        f"The baselines were given {len(given):,} of {dataset.split(name).rows:,} {name} rows, one block in "
        f"{math.ceil(dataset.split(name).rows / MAX_ROWS)}; our own figures are on all of them."
        for name, given in pairs.items()
        if dataset.split(name).rows > len(given)
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
