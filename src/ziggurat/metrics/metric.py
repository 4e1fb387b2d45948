"""The contract of metrics: a figure that is computed from a summary of the rows of one binary task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.grouped import GroupedFigures
from ziggurat.metrics.scores import ScoreHistogram

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of the evaluated rows from which every metric is computed.

    It does not depend on the order of the rows, nor on the order in which partial summaries were merged: the bits are
    the same, and so are those of every metric.

    Attributes:
        config: memory budgets and number of calibration bins.
        rows: number of rows, whatever their weight.
        positives: sum of the weights of positive rows.
        negatives: sum of the weights of negative rows.
        loss: weighted sum of the log-losses, in nats.
        prediction: weighted sum of the predicted probabilities.
        histogram: how often each logit occurred, per class.
        groups: ranking within groups; None without ``data.group``.
    """

    config: MetricsConfig
    rows: int
    positives: float
    negatives: float
    loss: float
    prediction: float
    histogram: ScoreHistogram
    groups: GroupedFigures | None

    @property
    def total(self) -> float:
        """Sum of all weights; greater than 0 where a metric is asked for."""
        return self.positives + self.negatives

    @property
    def base_rate(self) -> float:
        """Weighted share of positives."""
        return self.positives / self.total


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure and its description.

    Attributes:
        name: its key in ``metrics.jsonl``, and in ``training.monitor`` after the task.
        title: title in tables and plots.
        better: the direction of improvement; ``neither`` if the best value lies in between, or if the figure is only
            descriptive.
        meaning: an explanation in one sentence.
        compute: the figure of a summary, nan where it is undefined; None for a figure that is measured while training.
        grouped: whether it needs ``data.group``.
        counts: whether it is defined without a single usable row, as a number of rows is.
    """

    name: str
    title: str
    better: Better
    meaning: str
    compute: Callable[[Summary], float] | None = None
    grouped: bool = False
    counts: bool = False
