"""Metrics per slice of the data: one slice per id of an encoded feature, up to a maximum number of slices.

Ids 0 … n - 1 get a slice each, and all other ids share the slice ``other``. With a vocabulary these are the most
frequent values (row 0 is the missing value, then come out-of-vocabulary rows, then values by descending training
count). With a hash encoder the n ids are arbitrary.

Shape legend: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.rows import MetricRows
from ziggurat.metrics.task_metrics import TaskMetrics, new_metrics, restored_metrics
from ziggurat.metrics.value_rows import ValueRows
from ziggurat.objectives.task import Task


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """The metrics of one slice.

    Attributes:
        task: the label's name.
        feature: the feature that the data is sliced by.
        id: the encoded id, or None for ``other``.
        figures: the result of ``compute`` of the task's metrics, without GAUC.
    """

    task: str
    feature: str
    id: int | None
    figures: dict[str, float]

    @property
    def label(self) -> str:
        return f"{self.feature}={'other' if self.id is None else self.id}"


class SlicedMetrics:
    """The metrics of one task per id of one feature; slices that never occur take no memory."""

    def __init__(self, config: MetricsConfig, task: Task) -> None:
        self.config, self.task = config, task
        self._slice_config = config.model_copy(update={"score_keys": config.slice_score_keys})
        self._slices: dict[int, TaskMetrics] = {}

    def add(self, rows: MetricRows | ValueRows, finite_B: npt.NDArray[np.bool_], ids_B: npt.NDArray[Any]) -> None:
        """Counts rows in the slices of their ids.

        Args:
            rows: the rows of an update.
            finite_B: whether each row's logit is finite.
            ids_B: encoded ids, integers ≥ 0.
        """
        if ids_B.shape != (len(rows),) or not np.issubdtype(ids_B.dtype, np.integer):
            raise DataError(
                f"metrics: slice ids are {ids_B.dtype} of shape {ids_B.shape}; need integers ({len(rows)},)"
            )
        slice_B = np.clip(ids_B, 0, self.config.slice_ids).astype(np.uint16)
        if len(rows) == 0:
            return
        order_B = np.argsort(slice_B, kind="stable")
        sorted_B = slice_B[order_B]
        starts = np.flatnonzero(np.diff(sorted_B, prepend=np.uint16(0xFFFF)))
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            positions = order_B[start:end]
            finite = positions[finite_B[positions]]
            self._slice(int(sorted_B[start])).add(rows.take(finite).ungrouped(), len(positions) - len(finite))

    def merge(self, other: SlicedMetrics) -> None:
        for slice_id, metrics in other._slices.items():
            self._slice(slice_id).merge(metrics)

    def compute(self, task: str, feature: str) -> list[SliceFigures]:
        """Returns the metrics of the slices that occurred, ids ascending, ``other`` last."""
        other = self.config.slice_ids
        return [
            SliceFigures(task, feature, None if slice_id == other else slice_id, self._slices[slice_id].compute())
            for slice_id in sorted(self._slices)
        ]

    def state(self) -> dict[int, Any]:
        return {slice_id: self._slices[slice_id].state() for slice_id in sorted(self._slices)}

    @classmethod
    def from_state(cls, config: MetricsConfig, task: Task, state: dict[int, Any]) -> SlicedMetrics:
        restored = cls(config, task)
        for slice_id, slice_state in state.items():
            restored._slices[slice_id] = restored_metrics(task, restored._slice_config, slice_state)
        return restored

    def _slice(self, slice_id: int) -> TaskMetrics:
        if slice_id not in self._slices:
            self._slices[slice_id] = new_metrics(self.task, self._slice_config, grouped=False)
        return self._slices[slice_id]
