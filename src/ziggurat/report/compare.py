"""The baselines, trained on a dataset's own columns, as rows of the comparison."""

from __future__ import annotations

import math

import numpy as np

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress
from ziggurat.core.schema import WEIGHT_COLUMN, Schema, label_column
from ziggurat.data.columns import Columns
from ziggurat.data.dataset import Dataset, Split
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.report.baselines import BaselineData, BaselineSplit, Jagged, fit_baselines
from ziggurat.report.inputs import ComparisonRow

MAX_ROWS = 4_000_000
"""Rows of a split that the baselines are given; they hold them in memory."""


def compare(
    dataset: Dataset, judged: Split, ours: list[ComparisonRow], seed: int, progress: Progress, notes: list[str]
) -> list[ComparisonRow]:
    """``ours`` followed by each baseline, for each task.

    Args:
        judged: the split that all are judged on.
        ours: a row per task.
        notes: a sentence is added where the baselines saw less than we did, or could not be trained.
    """
    rows: list[ComparisonRow] = []
    for row in ours:
        rows.append(row)
        try:
            data = BaselineData(*(_split(dataset, split, row.task, notes) for split in ("train", "validation", judged)))
            for result in fit_baselines(data, seed, progress):
                metrics = BinaryMetrics()
                metrics.update(result.logits_B.astype(np.float32), data.test.labels_B, data.test.weights_B)
                figures = metrics.compute()
                rows.append(ComparisonRow(row.task, result.name, False, figures, result.seconds, result.description))
        except DataError as error:
            notes.append(f"No baselines for {row.task}: {error.problem}")
    return rows


def _split(dataset: Dataset, name: Split, task: str, notes: list[str]) -> BaselineSplit:
    blocks, schema = dataset.split(name), dataset.schema
    step = max(1, math.ceil(blocks.rows / MAX_ROWS))
    columns = Columns([blocks.read(block) for block in range(0, len(blocks.blocks), step)], schema)
    if step > 1:
        notes.append(
            f"The baselines were given {columns.rows:,} of {blocks.rows:,} {name} rows, one block in {step}; "
            "our own figures are on all of them."
        )
    return _baseline_split(columns, schema, task)


def _baseline_split(columns: Columns, schema: Schema, task: str) -> BaselineSplit:
    dense_FB = [columns.flat(name) for name in schema.dense]
    return BaselineSplit(
        dense_BF=np.stack(dense_FB, axis=1) if dense_FB else np.zeros((columns.rows, 0), np.float32),
        categorical={name: columns.flat(name) for name in schema.categorical},
        bags={
            name: Jagged(jagged.offsets, jagged.values)
            for name in (*schema.bags, *schema.sequences)
            for jagged in (columns.jagged(name),)
        },
        labels_B=columns.flat(label_column(task)),
        weights_B=columns.flat(WEIGHT_COLUMN) if schema.has_weight else None,
    )
