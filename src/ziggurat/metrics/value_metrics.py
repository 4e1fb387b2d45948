"""All metrics of one task whose label is a number (regression, ordinal), computed from a stream of batches.

As :class:`~ziggurat.metrics.binary.BinaryMetrics`, the state is a function of the multiset of rows seen: exact sums of
errors, a histogram of labels, and pairs of predictions and labels. It has the same bits in any order of updates and
merges.

Shape legend: B rows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.exact_sum import ExactSum
from ziggurat.metrics.names import VALUE_METRICS
from ziggurat.metrics.pairs import PairHistogram
from ziggurat.metrics.rows import WEIGHT_UNITS, MetricRows
from ziggurat.metrics.scores import ScoreHistogram
from ziggurat.metrics.value_losses import main_losses
from ziggurat.metrics.value_metric import ValueSummary
from ziggurat.metrics.value_rows import ValueRows, concatenate_values, read_value_rows
from ziggurat.objectives.losses import Quantile
from ziggurat.objectives.task import Task

_BUFFER_ROWS = 1 << 16
_SUMS = ("label", "square", "prediction", "squared_error", "absolute_error", "loss")


class ValueMetrics:
    """Streaming metrics of one task.

    Args:
        task: the task.
        config: memory budgets.
    """

    def __init__(self, task: Task, config: MetricsConfig | None = None) -> None:
        self.task, self.config = task, config or MetricsConfig()
        self.rows = 0
        self.not_finite_rows = 0
        self._units = 0
        self._sums = {name: ExactSum() for name in _SUMS}
        self._covered = [0] * (task.columns if isinstance(task.loss, Quantile) else 0)
        self._labels = ScoreHistogram(self.config.score_keys)
        self._pairs = PairHistogram(self.config.score_keys)
        self._buffer: list[ValueRows] = []
        self._buffered_rows = 0

    @property
    def pairs(self) -> PairHistogram:
        """The pairs of predictions and labels, from which curves are drawn."""
        self._flush()
        return self._pairs

    def read(
        self,
        columns_BC: npt.ArrayLike,
        labels_B: npt.ArrayLike,
        weights_B: npt.ArrayLike | None = None,
        groups_B: npt.ArrayLike | None = None,
    ) -> tuple[ValueRows, npt.NDArray[np.bool_]]:
        """Returns the checked rows of an update, and a mask of those whose prediction is finite."""
        del groups_B
        return read_value_rows(self.task, columns_BC, labels_B, weights_B)

    def update(
        self, columns_BC: npt.ArrayLike, labels_B: npt.ArrayLike, weights_B: npt.ArrayLike | None = None
    ) -> None:
        """Counts a batch; rows whose prediction is not finite are counted and make every figure undefined.

        Args:
            columns_BC: what the task's losses are computed from, float32 (B, C).
            labels_B: finite labels.
            weights_B: example weights ≥ 0, or None for all ones.

        Raises:
            DataError: the input is invalid (see :func:`~ziggurat.metrics.value_rows.read_value_rows`).
        """
        rows, finite_B = self.read(columns_BC, labels_B, weights_B)
        self.add(rows.take(finite_B), int((~finite_B).sum()))

    def add(self, rows: ValueRows, not_finite_rows: int = 0) -> None:
        """Counts rows that :meth:`read` has checked; their predictions must be finite."""
        self.rows += len(rows) + not_finite_rows
        self.not_finite_rows += not_finite_rows
        self._buffer.append(rows)
        self._buffered_rows += len(rows)
        if self._buffered_rows >= max(min(_BUFFER_ROWS, self.config.score_keys), len(self._pairs.pairs_E)):
            self._flush()

    def merge(self, other: ValueMetrics) -> None:
        """Adds the rows that ``other`` has counted; ``other`` is not changed."""
        assert (self.task, self.config) == (other.task, other.config)
        self._flush()
        other._flush()
        self.rows += other.rows
        self.not_finite_rows += other.not_finite_rows
        self._units += other._units
        for name, total in self._sums.items():
            total.merge(other._sums[name])
        self._covered = [mine + theirs for mine, theirs in zip(self._covered, other._covered, strict=True)]
        self._labels.merge(other._labels)
        self._pairs.merge(other._pairs)

    def compute(self) -> dict[str, float]:
        """Returns every figure by name (see ``names.VALUE_METRICS``); nan where :meth:`undefined` gives a reason."""
        summary = self.summary()
        usable = summary.total > 0 and self.not_finite_rows == 0
        return {
            name: metric.compute(summary) if usable or metric.counts else math.nan
            for name, metric in VALUE_METRICS.items()
            if metric.of(self.task)
        }

    def summary(self) -> ValueSummary:
        """Returns what the rows amount to so far."""
        self._flush()
        total = self._units / WEIGHT_UNITS
        return ValueSummary(
            task=self.task,
            rows=self.rows,
            total=total,
            sums={name: each.value for name, each in self._sums.items()},
            variance=self._variance(),
            covered=tuple(units / WEIGHT_UNITS for units in self._covered),
            labels=self._labels,
            pairs=self._pairs,
        )

    def undefined(self) -> dict[str, str]:
        """Returns, for each figure that :meth:`compute` returns as nan, the reason why it is undefined."""
        return {name: self._reason() for name, value in self.compute().items() if math.isnan(value)}

    def state(self) -> dict[str, Any]:
        """Returns the state as plain integers and numpy arrays, to be pickled; the same rows give the same state."""
        self._flush()
        return {
            "rows": self.rows,
            "not_finite_rows": self.not_finite_rows,
            "units": self._units,
            "sums": {name: total.units for name, total in self._sums.items()},
            "covered": list(self._covered),
            "labels": self._labels.state(),
            "pairs": self._pairs.state(),
        }

    @classmethod
    def from_state(cls, task: Task, config: MetricsConfig, state: dict[str, Any]) -> ValueMetrics:
        """Restores metrics from a :meth:`state` of another rank with the same task and config."""
        restored = cls(task, config)
        restored.rows, restored.not_finite_rows = int(state["rows"]), int(state["not_finite_rows"])
        restored._units = int(state["units"])
        restored._sums = {name: ExactSum(state["sums"][name]) for name in _SUMS}
        restored._covered = list(state["covered"])
        restored._labels = ScoreHistogram.from_state(config.score_keys, state["labels"])
        restored._pairs = PairHistogram.from_state(config.score_keys, state["pairs"])
        return restored

    def _variance(self) -> float:
        if not self._units:
            return math.nan
        weight = Fraction(self._units, WEIGHT_UNITS)
        label, square = (Fraction(self._sums[name].units, 1 << 1074) / weight for name in ("label", "square"))
        return max(float(square - label**2), 0.0)

    def _reason(self) -> str:
        if self.not_finite_rows:
            return f"{self.not_finite_rows} of {self.rows} predictions are infinite or not a number"
        if self.rows == 0:
            return "no rows"
        return f"all {self.rows} weights are zero" if self._units == 0 else "all labels are equal, or sum to 0"

    def _flush(self) -> None:
        if self._buffered_rows:
            rows = concatenate_values(self._buffer)
            self._labels.add(MetricRows(rows.label_B, np.ones(len(rows), np.bool_), rows.units_B, None))
            self._pairs.add(rows.prediction_B, rows.label_B, rows.units_B)
            self._units += int(rows.units_B.sum())
            for start in range(0, len(rows), _BUFFER_ROWS):  # in chunks that fit into the processor's cache
                self._add_sums(rows.take(slice(start, start + _BUFFER_ROWS)))
        self._buffer, self._buffered_rows = [], 0

    def _add_sums(self, rows: ValueRows) -> None:
        label_B, weight_B = rows.label_B.astype(np.float64), rows.units_B / WEIGHT_UNITS
        columns_BC, prediction_B = rows.columns_BC.astype(np.float64), rows.prediction_B.astype(np.float64)
        error_B = prediction_B - label_B
        values = {
            "label": label_B,
            "square": label_B**2,
            "prediction": prediction_B,
            "squared_error": error_B**2,
            "absolute_error": np.abs(error_B),
            "loss": main_losses(self.task, columns_BC, prediction_B, label_B),
        }
        for name, value_B in values.items():
            self._sums[name].add(value_B * weight_B)
        if self._covered:
            below_BC = label_B[:, None] <= np.sort(columns_BC, axis=1)
            covered = np.where(below_BC, rows.units_B[:, None], 0).sum(axis=0).tolist()
            self._covered = [total + more for total, more in zip(self._covered, covered, strict=True)]
