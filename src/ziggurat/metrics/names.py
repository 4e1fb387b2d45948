"""The list of metrics, by name, and whether higher or lower is better."""

from __future__ import annotations

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.metrics.figures.calibration import CALIBRATION, EXPECTED_ERROR, EXPECTED_ERROR_BY_MASS
from ziggurat.metrics.figures.description import BASE_RATE, MEAN_PREDICTION, ROWS
from ziggurat.metrics.figures.likelihood import LOG_LOSS, LOSS, NORMALISED_ENTROPY
from ziggurat.metrics.figures.ranking import AUC, GAUC, GROUPS_KEPT, GROUPS_OF_ONE_CLASS, GROUPS_SEEN
from ziggurat.metrics.figures.values import (
    COVERAGE_GAP,
    DEVIANCE,
    LEVEL_LOG_LOSS,
    MAE,
    MEAN_LABEL,
    PINBALL,
    R2,
    RELATIVE_LOSS,
    RMSE,
    RMSLE,
    VALUE_CALIBRATION,
    VALUE_MEAN_PREDICTION,
    VALUE_ROWS,
    XAUC,
)
from ziggurat.metrics.metric import Metric
from ziggurat.metrics.value_metric import ValueMetric
from ziggurat.objectives.task import Task

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        AUC,
        GAUC,
        LOG_LOSS,
        LOSS,
        NORMALISED_ENTROPY,
        EXPECTED_ERROR,
        EXPECTED_ERROR_BY_MASS,
        CALIBRATION,
        BASE_RATE,
        MEAN_PREDICTION,
        ROWS,
        GROUPS_KEPT,
        GROUPS_OF_ONE_CLASS,
        GROUPS_SEEN,
    )
}
"""Every metric of labels that are 0, 1 or rates between them, in the order of tables."""

VALUE_METRICS: dict[str, ValueMetric] = {
    metric.name: metric
    for metric in (
        RMSE,
        MAE,
        R2,
        RMSLE,
        DEVIANCE,
        PINBALL,
        COVERAGE_GAP,
        LEVEL_LOG_LOSS,
        RELATIVE_LOSS,
        XAUC,
        VALUE_CALIBRATION,
        MEAN_LABEL,
        VALUE_MEAN_PREDICTION,
        VALUE_ROWS,
    )
}
"""Every metric of labels that are numbers, in the order of tables."""

ALL_METRICS: dict[str, Metric | ValueMetric] = {
    **METRICS,
    **{k: v for k, v in VALUE_METRICS.items() if k not in METRICS},
}
"""Every metric by name, in the order of tables; a name that both kinds of label have means the same for both."""


def measured(task: Task, grouped: bool) -> list[str]:
    """Returns the names of the metrics that are computed for a task, ``grouped`` with ``data.group``."""
    if task.is_probability:
        return [name for name, metric in METRICS.items() if metric.compute and (grouped or not metric.grouped)]
    return [name for name, metric in VALUE_METRICS.items() if metric.of(task)]


def base_name(name: str) -> str:
    """Returns the metric's name without task and slice: ``auc`` for ``auc``, ``like/auc`` and ``like/gender=2/auc``."""
    return name.rsplit("/", 1)[-1]


def higher_is_better(name: str) -> bool:
    """Returns whether higher values of ``name``, with or without a task's prefix, are better (for early stopping).

    Raises:
        ConfigError: the metric is unknown, or neither direction is better.
    """
    info = ALL_METRICS.get(base_name(name))
    directed = [
        known for known, entry in (METRICS | ALL_METRICS).items() if entry.better != "neither" and known != "loss"
    ]
    if info is None:
        close = nearest(base_name(name), directed)
        task, _, metric = name.rpartition(".")
        if task and metric in directed:
            close = f"{task}/{metric}"
        hint = f"did you mean {close!r}? " if close else ""
        raise ConfigError(f"unknown metric {name!r}", f"{hint}choose one of {', '.join(directed)}")
    if info.better == "neither":
        raise ConfigError(f"metric {name!r} has no better direction", f"choose one of {', '.join(directed)}")
    return info.better == "higher"
