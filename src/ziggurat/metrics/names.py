"""Names of the metrics: what each means, and whether higher or lower is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ziggurat.core.errors import ConfigError, nearest

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """How to present and interpret a metric.

    Attributes:
        title: title in tables and plots.
        better: the direction of improvement; ``neither`` if the best value lies in between, or if the figure is only
            descriptive.
        meaning: an explanation in one sentence.
    """

    title: str
    better: Better
    meaning: str


METRICS: dict[str, MetricInfo] = {
    "auc": MetricInfo(
        "AUC", "higher", "Chance that a random positive is scored above a random negative; 0.5 is guessing."
    ),
    "gauc": MetricInfo("GAUC", "higher", "AUC within each group, averaged over groups by their impressions."),
    "log_loss": MetricInfo("Log-loss", "lower", "Mean negative log-likelihood of the labels, in nats."),
    "loss": MetricInfo("Loss", "lower", "The objective that training minimises."),
    "ne": MetricInfo(
        "NE", "lower", "Log-loss over that of always predicting the base rate; 1 means nothing was learnt."
    ),
    "ece": MetricInfo("ECE", "lower", "Mean gap between predicted and observed rate over bins of equal width."),
    "ece_mass": MetricInfo("ECE, equal mass", "lower", "The same over bins that hold equally many rows."),
    "calibration": MetricInfo("Calibration", "neither", "Sum of predictions over sum of labels; best at 1."),
    "base_rate": MetricInfo("Base rate", "neither", "Share of positives."),
    "mean_prediction": MetricInfo("Mean prediction", "neither", "Mean predicted probability."),
    "rows": MetricInfo("Rows", "neither", "Rows evaluated."),
    "gauc_groups": MetricInfo("Groups kept", "neither", "Groups that GAUC looked at."),
    "gauc_groups_one_class": MetricInfo("Groups of one class", "neither", "Kept groups that GAUC cannot rank."),
    "gauc_groups_seen": MetricInfo("Groups seen", "neither", "All groups; estimated once not all are kept."),
}


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
