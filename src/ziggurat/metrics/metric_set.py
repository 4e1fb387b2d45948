"""The metrics of all tasks of a model and of their slices. Evaluation updates them; early stopping watches one.

Names: ``auc`` for a model of one task, ``like/auc`` for several; a slice adds ``gender=2/`` before the last part.

Shape legend: B rows, T tasks, C columns of all tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError, unknown_name
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.curves import Curves, ValueBins, curves, value_bins
from ziggurat.metrics.sliced import SlicedMetrics, SliceFigures
from ziggurat.metrics.task_metrics import TaskMetrics, new_metrics, restored_metrics
from ziggurat.metrics.value_metrics import ValueMetrics
from ziggurat.objectives.task import Task, as_tasks, column_slices


class MetricSet:
    """Streaming metrics of a model.

    Args:
        tasks: the tasks in order; a name alone is that of a binary label.
        config: memory budgets and number of calibration bins.
        grouped: whether to compute GAUC.
        slices: names of the features to slice by.
    """

    def __init__(
        self,
        tasks: Sequence[str | Task],
        config: MetricsConfig | None = None,
        grouped: bool = False,
        slices: Sequence[str] = (),
    ) -> None:
        self._described = as_tasks(tasks)
        self.tasks = tuple(task.name for task in self._described)
        self.config = config or MetricsConfig()
        self.grouped = grouped
        self.slices = tuple(slices)
        self._tasks = {task.name: new_metrics(task, self.config, grouped) for task in self._described}
        self._slices = {
            (task.name, name): SlicedMetrics(self.config, task) for task in self._described for name in self.slices
        }

    def __getitem__(self, task: str) -> TaskMetrics:
        """Returns the metrics of one task.

        Raises:
            ConfigError: there is no such task.
        """
        if task not in self._tasks:
            raise unknown_name("task", task, self.tasks)
        return self._tasks[task]

    def update(
        self,
        columns_BC: npt.ArrayLike,
        labels_BT: npt.ArrayLike,
        weights_B: npt.ArrayLike | None = None,
        groups_B: npt.ArrayLike | None = None,
        slice_ids: Mapping[str, npt.ArrayLike] | None = None,
        counts_BT: npt.ArrayLike | None = None,
    ) -> None:
        """Counts a batch.

        Args:
            columns_BC: what a recommender returns for the tasks, float32, (B, C): logits of labels that are rates.
            labels_BT: the labels, (B, T).
            weights_B: ≥ 0, or None for all ones.
            groups_B: integer keys for GAUC; required when ``grouped``.
            slice_ids: for each feature of ``slices``, its encoded ids, (B,).
            counts_BT: weights of each label by itself, which multiply ``weights_B``; None for all ones.

        Raises:
            DataError: the ids of a slice are missing; or see :func:`~ziggurat.metrics.rows.read_rows`.
        """
        columns, labels = np.asarray(columns_BC), np.asarray(labels_BT)
        width = sum(task.columns for task in self._described)
        assert columns.shape == (len(labels), width), (columns.shape, labels.shape, self.tasks)
        assert labels.shape == (len(labels), len(self.tasks)), (labels.shape, self.tasks)
        missing = [name for name in self.slices if name not in (slice_ids or {})]
        if missing:
            raise DataError(
                f"slice_ids: has no ids of {missing[0]!r}; there are: {', '.join(slice_ids or {}) or 'none'}",
                f"give those of {', '.join(self.slices)}, one id a row",
            )
        ids = {name: np.asarray((slice_ids or {})[name]) for name in self.slices}
        for position, (task, at) in enumerate(zip(self._described, column_slices(self._described), strict=True)):
            weights = weights_B
            if counts_BT is not None:
                counts_B = np.asarray(counts_BT)[:, position].astype(np.float64)
                weights = counts_B if weights_B is None else counts_B * np.asarray(weights_B)
            given = columns[:, at.start] if task.is_probability else columns[:, at]
            rows, finite_B = self._tasks[task.name].read(given, labels[:, position], weights, groups_B)
            finite = rows if finite_B.all() else rows.take(finite_B)
            self._tasks[task.name].add(finite, int((~finite_B).sum()))
            for name in self.slices:
                self._slices[task.name, name].add(rows, finite_B, ids[name])

    def merge(self, other: MetricSet) -> None:
        """Adds the rows that ``other`` has counted; it must have the same tasks and config."""
        assert (self._described, self.slices) == (other._described, other.slices)
        for task, metrics in self._tasks.items():
            metrics.merge(other._tasks[task])
        for key, sliced in self._slices.items():
            sliced.merge(other._slices[key])

    def compute(self) -> dict[str, float]:
        """Returns every figure of every task by its full name."""
        return {
            self._full_name(task, name): value
            for task, metrics in self._tasks.items()
            for name, value in metrics.compute().items()
        }

    def undefined(self) -> dict[str, str]:
        """Returns the reason why a figure is nan, by the figure's full name."""
        return {
            self._full_name(task, name): reason
            for task, metrics in self._tasks.items()
            for name, reason in metrics.undefined().items()
        }

    def compute_slices(self) -> list[SliceFigures]:
        """Returns the metrics of every slice that occurred, ordered by task, feature and id."""
        return [row for (task, name), sliced in self._slices.items() for row in sliced.compute(task, name)]

    def slice_figures(self) -> dict[str, float]:
        """Returns the figures of :meth:`compute_slices` by full name: ``gender=2/auc`` or ``like/gender=2/auc``."""
        return {
            self._full_name(row.task, f"{row.label}/{name}"): value
            for row in self.compute_slices()
            for name, value in row.figures.items()
        }

    def curves(self) -> dict[str, Curves]:
        """Returns the ROC curve, calibration and score histograms of each task whose labels are rates."""
        return {
            task: curves(metrics.histogram, self.config.calibration_bins)
            for task, metrics in self._tasks.items()
            if isinstance(metrics, BinaryMetrics)
        }

    def value_bins(self) -> dict[str, ValueBins]:
        """Returns the mean labels by prediction of each task whose labels are numbers."""
        return {
            task: value_bins(metrics.pairs, self.config.calibration_bins)
            for task, metrics in self._tasks.items()
            if isinstance(metrics, ValueMetrics)
        }

    def state(self) -> dict[str, Any]:
        """Returns the state as plain integers and numpy arrays, to be pickled to another rank."""
        return {
            "tasks": {task: metrics.state() for task, metrics in self._tasks.items()},
            "slices": {key: sliced.state() for key, sliced in self._slices.items()},
        }

    def with_state(self, state: dict[str, Any]) -> MetricSet:
        """Returns a set with the same tasks and config that holds ``state``."""
        restored = MetricSet(self._described, self.config, self.grouped, self.slices)
        for task in self._described:
            restored._tasks[task.name] = restored_metrics(task, self.config, state["tasks"][task.name])
            for name in self.slices:
                sliced = SlicedMetrics.from_state(self.config, task, state["slices"][task.name, name])
                restored._slices[task.name, name] = sliced
        return restored

    def _full_name(self, task: str, name: str) -> str:
        return name if len(self.tasks) == 1 else f"{task}/{name}"
