"""The checked rows of one update of a label that is a number: the input of :class:`ValueMetrics`.

Shape legend: B rows, C columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.metrics.rows import WEIGHT_UNITS, weight_units
from ziggurat.objectives.task import Task

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class ValueRows:
    """Predictions with their labels.

    Attributes:
        columns_BC: float32, what the task's losses are computed from.
        prediction_B: float32, in the label's units; negative zero has become zero.
        label_B: float32, finite.
        units_B: int64 weights, in multiples of 1 / ``WEIGHT_UNITS``.
    """

    columns_BC: npt.NDArray[np.float32]
    prediction_B: npt.NDArray[np.float32]
    label_B: npt.NDArray[np.float32]
    units_B: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label_B)

    def take(self, chosen: npt.NDArray[Any] | slice) -> ValueRows:
        """Returns the rows at these positions, under this mask, or in this slice."""
        return ValueRows(self.columns_BC[chosen], self.prediction_B[chosen], self.label_B[chosen], self.units_B[chosen])

    def ungrouped(self) -> ValueRows:
        """Returns the rows: they have no groups."""
        return self


def read_value_rows(
    task: Task, columns_BC: npt.ArrayLike, labels_B: npt.ArrayLike, weights_B: npt.ArrayLike | None = None
) -> tuple[ValueRows, npt.NDArray[np.bool_]]:
    """Checks the rows of one update; returns all of them and a mask of those whose prediction is finite.

    Raises:
        DataError: shapes differ, a label is not finite or, for a loss that needs labels of 0 or more, negative, or a
            weight is negative or not a number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        columns, labels = np.asarray(columns_BC).astype(np.float32), np.asarray(labels_B).astype(np.float32)
    if labels.ndim != 1 or columns.shape != (len(labels), task.columns):
        raise DataError(
            f"metrics: columns of shape {columns.shape} with labels of shape {labels.shape}; need (B, {task.columns}) "
            "and (B,)"
        )
    if not np.isfinite(labels).all():
        raise DataError(f"metrics: {task.name}: a label is not finite")
    with np.errstate(over="ignore", invalid="ignore"):
        prediction = task.predictions(columns)
        finite = np.isfinite(columns).all(axis=1) & (np.abs(prediction) <= _LARGEST)
        single = prediction.astype(np.float32) + np.float32(0.0)
    units = np.full(len(labels), WEIGHT_UNITS, np.int64) if weights_B is None else weight_units(weights_B, labels.shape)
    return ValueRows(columns, single, labels + np.float32(0.0), units), finite


def concatenate_values(parts: list[ValueRows]) -> ValueRows:
    """Concatenates the rows of several updates."""
    return ValueRows(
        np.concatenate([part.columns_BC for part in parts]),
        np.concatenate([part.prediction_B for part in parts]),
        np.concatenate([part.label_B for part in parts]),
        np.concatenate([part.units_B for part in parts]),
    )
