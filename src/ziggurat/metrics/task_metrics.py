"""The streaming metrics of one task, by the kind of its label.

Shape legend: B rows.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.value_metrics import ValueMetrics
from ziggurat.objectives.task import Task


class TaskMetrics(Protocol):
    """Metrics of a stream of rows: the state is a function of the multiset of rows, and merges."""

    rows: int

    def read(
        self,
        columns: npt.ArrayLike,
        labels_B: npt.ArrayLike,
        weights_B: npt.ArrayLike | None = None,
        groups_B: npt.ArrayLike | None = None,
        /,
    ) -> tuple[Any, npt.NDArray[np.bool_]]:
        """Returns the checked rows of an update, and a mask of those whose prediction is finite."""
        ...

    def add(self, rows: Any, not_finite_rows: int = 0) -> None:
        """Counts rows that :meth:`read` has checked, of predictions that are finite."""

    def merge(self, other: Any) -> None:
        """Adds the rows that other metrics of the same task have counted."""

    def compute(self) -> dict[str, float]:
        """Returns every figure by name."""
        ...

    def undefined(self) -> dict[str, str]:
        """Returns the reason why a figure is nan, by its name."""
        ...

    def state(self) -> dict[str, Any]:
        """Returns the state as plain integers and numpy arrays; the same rows give the same state."""
        ...


def new_metrics(task: Task, config: MetricsConfig, grouped: bool) -> TaskMetrics:
    """Returns metrics without rows; ``grouped`` says whether to compute GAUC of labels that are rates."""
    return BinaryMetrics(config, grouped, task) if task.is_probability else ValueMetrics(task, config)


def restored_metrics(task: Task, config: MetricsConfig, state: dict[str, Any]) -> TaskMetrics:
    """Returns the metrics whose ``state()`` is given, of another rank with the same task and config."""
    if task.is_probability:
        return BinaryMetrics.from_state(config, state, task)
    return ValueMetrics.from_state(task, config, state)
