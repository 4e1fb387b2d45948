"""The streaming metrics of one task, by the kind of its label."""

from __future__ import annotations

from typing import Any

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.value_metrics import ValueMetrics
from ziggurat.objectives.task import Task

TaskMetrics = BinaryMetrics | ValueMetrics


def new_metrics(task: Task, config: MetricsConfig, grouped: bool) -> TaskMetrics:
    """Returns metrics without rows; ``grouped`` says whether to compute GAUC of labels that are rates."""
    return BinaryMetrics(config, grouped, task) if task.is_probability else ValueMetrics(task, config)


def restored_metrics(task: Task, config: MetricsConfig, state: dict[str, Any]) -> TaskMetrics:
    """Returns the metrics whose ``state()`` is given, of another rank with the same task and config."""
    if task.is_probability:
        return BinaryMetrics.from_state(config, state, task)
    return ValueMetrics.from_state(task, config, state)
