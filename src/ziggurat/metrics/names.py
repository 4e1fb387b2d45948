"""The list of metrics, by name, and whether higher or lower is better."""

from __future__ import annotations

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.metrics.figures.calibration import CALIBRATION, EXPECTED_ERROR, EXPECTED_ERROR_BY_MASS
from ziggurat.metrics.figures.description import BASE_RATE, MEAN_PREDICTION, ROWS
from ziggurat.metrics.figures.likelihood import LOG_LOSS, LOSS, NORMALISED_ENTROPY
from ziggurat.metrics.figures.ranking import AUC, GAUC, GROUPS_KEPT, GROUPS_OF_ONE_CLASS, GROUPS_SEEN
from ziggurat.metrics.metric import Metric

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
"""Every metric, in the order of tables."""


def base_name(name: str) -> str:
    """Returns the metric's name without task and slice: ``auc`` for ``auc``, ``like/auc`` and ``like/gender=2/auc``."""
    return name.rsplit("/", 1)[-1]


def higher_is_better(name: str) -> bool:
    """Returns whether higher values of ``name``, with or without a task's prefix, are better (for early stopping).

    Raises:
        ConfigError: the metric is unknown, or neither direction is better.
    """
    info = METRICS.get(base_name(name))
    directed = [known for known, entry in METRICS.items() if entry.better != "neither" and known != "loss"]
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
