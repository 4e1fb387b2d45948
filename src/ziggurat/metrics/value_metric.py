"""The contract of metrics of labels that are numbers: a figure of a summary of the rows of one task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ziggurat.metrics.metric import Better
from ziggurat.metrics.pairs import PairHistogram
from ziggurat.metrics.scores import ScoreHistogram
from ziggurat.objectives.task import Task


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """The summary of the evaluated rows from which every metric is computed; the same bits in any order of rows.

    Attributes:
        task: the task.
        rows: number of rows, whatever their weight.
        total: sum of all weights; greater than 0 where a metric is asked for.
        sums: weighted sums over rows: ``label``, ``square`` (of the label), ``prediction``, ``squared_error``,
            ``absolute_error``, and ``loss``, whose mean is the main metric.
        variance: the weighted variance of the labels, without the rounding errors of a difference of sums.
        covered: for each level of a quantile label, the weight of the rows whose label is at most the prediction.
        labels: how often each label occurred, as the weight of positives.
        pairs: how often each pair of a prediction and a label occurred.
    """

    task: Task
    rows: int
    total: float
    sums: Mapping[str, float]
    variance: float
    covered: tuple[float, ...]
    labels: ScoreHistogram
    pairs: PairHistogram

    def mean(self, name: str) -> float:
        """Returns the weighted mean of a value whose sum is known."""
        return self.sums[name] / self.total


@dataclass(frozen=True, slots=True)
class ValueMetric:
    """A figure and its description; see :class:`~ziggurat.metrics.metric.Metric`.

    Attributes:
        of: whether the metric is computed for a task.
    """

    name: str
    title: str
    better: Better
    meaning: str
    compute: Callable[[ValueSummary], float]
    of: Callable[[Task], bool] = lambda task: True
    grouped: bool = False
    counts: bool = False
