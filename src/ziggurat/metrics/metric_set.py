"""The metrics of all tasks of a model and of their slices. Evaluation updates them; early stopping watches one.

Names: ``auc`` for a model of one task, ``like/auc`` for several; a slice adds ``gender=2/`` before the last part.

Shape legend: B rows, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError, unknown_name
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.curves import Curves, curves
from ziggurat.metrics.rows import read_rows
from ziggurat.metrics.sliced import SlicedMetrics, SliceFigures


class MetricSet:
    """Streaming metrics of a model.

    Args:
        tasks: label names, in the order of the columns of ``logits_BT``.
        config: memory budgets and number of calibration bins.
        grouped: whether to compute GAUC.
        slices: names of the features to slice by.
    """

    def __init__(
        self,
        tasks: Sequence[str],
        config: MetricsConfig | None = None,
        grouped: bool = False,
        slices: Sequence[str] = (),
    ) -> None:
        self.tasks = tuple(tasks)
        self.config = config or MetricsConfig()
        self.grouped = grouped
        self.slices = tuple(slices)
        self._tasks = {task: BinaryMetrics(self.config, grouped) for task in self.tasks}
        self._slices = {(task, name): SlicedMetrics(self.config) for task in self.tasks for name in self.slices}

    def __getitem__(self, task: str) -> BinaryMetrics:
        """Returns the metrics of one task.

        Raises:
            ConfigError: there is no such task.
        """
        if task not in self._tasks:
            raise unknown_name("task", task, self.tasks)
        return self._tasks[task]

    def update(
        self,
        logits_BT: npt.ArrayLike,
        labels_BT: npt.ArrayLike,
        weights_B: npt.ArrayLike | None = None,
        groups_B: npt.ArrayLike | None = None,
        slice_ids: Mapping[str, npt.ArrayLike] | None = None,
    ) -> None:
        """Counts a batch.

        Args:
            logits_BT: float32, (B, T).
            labels_BT: 0 or 1, (B, T).
            weights_B: ≥ 0, or None for all ones.
            groups_B: integer keys for GAUC; required when ``grouped``.
            slice_ids: for each feature of ``slices``, its encoded ids, (B,).

        Raises:
            DataError: the ids of a slice are missing; or see :func:`~ziggurat.metrics.rows.read_rows`.
        """
        logits, labels = np.asarray(logits_BT), np.asarray(labels_BT)
        assert logits.shape == labels.shape == (len(logits), len(self.tasks)), (logits.shape, labels.shape, self.tasks)
        missing = [name for name in self.slices if name not in (slice_ids or {})]
        if missing:
            raise DataError(
                f"slice_ids: has no ids of {missing[0]!r}; there are: {', '.join(slice_ids or {}) or 'none'}",
                f"give those of {', '.join(self.slices)}, one id a row",
            )
        ids = {name: np.asarray((slice_ids or {})[name]) for name in self.slices}
        for position, (task, metrics) in enumerate(self._tasks.items()):
            if not self.slices:
                metrics.update(logits[:, position], labels[:, position], weights_B, groups_B)
                continue
            rows, finite_B = read_rows(
                logits[:, position], labels[:, position], weights_B, groups_B if self.grouped else None
            )
            metrics.add(rows.take(finite_B), int((~finite_B).sum()))
            for name in self.slices:
                self._slices[task, name].add(rows, finite_B, ids[name])

    def merge(self, other: MetricSet) -> None:
        """Adds the rows that ``other`` has counted; it must have the same tasks and config."""
        assert (self.tasks, self.slices) == (other.tasks, other.slices)
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
        """Returns the ROC curve, calibration and score histograms of each task."""
        return {task: curves(metrics.histogram, self.config.calibration_bins) for task, metrics in self._tasks.items()}

    def state(self) -> dict[str, Any]:
        """Returns the state as plain integers and numpy arrays, to be pickled to another rank."""
        return {
            "tasks": {task: metrics.state() for task, metrics in self._tasks.items()},
            "slices": {key: sliced.state() for key, sliced in self._slices.items()},
        }

    def with_state(self, state: dict[str, Any]) -> MetricSet:
        """Returns a set with the same tasks and config that holds ``state``."""
        restored = MetricSet(self.tasks, self.config, self.grouped, self.slices)
        restored._tasks = {task: BinaryMetrics.from_state(self.config, state["tasks"][task]) for task in self.tasks}
        restored._slices = {key: SlicedMetrics.from_state(self.config, state["slices"][key]) for key in self._slices}
        return restored

    def _full_name(self, task: str, name: str) -> str:
        return name if len(self.tasks) == 1 else f"{task}/{name}"
