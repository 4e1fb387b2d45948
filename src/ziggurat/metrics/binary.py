"""All metrics of one binary task, computed from a stream of batches.

log-loss    = Σ w (max(x, 0) − x y + log(1 + e^−|x|)) / Σ w       from the logit x, so no probability is clipped
NE          = log-loss / H(base rate)                             He et al. 2014, "Practical lessons from predicting
                                                                  clicks on ads at Facebook", eq. 3
calibration = Σ w σ(x) / Σ w y                                    the same paper, section 3

The state is a function of the multiset of rows seen: it has the same bits whatever the order of updates and merges.
Integer histograms hold what ranking and calibration bins need (``scores``, ``grouped``), exact sums hold loss and
predictions (``exact_sum``). Rows are buffered only so that many are sorted at a time.

Shape legend: B rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.exact_sum import ExactSum
from ziggurat.metrics.grouped import GroupedScores
from ziggurat.metrics.metric import Summary
from ziggurat.metrics.names import METRICS
from ziggurat.metrics.rows import WEIGHT_UNITS, MetricRows, concatenate, read_rows
from ziggurat.metrics.scores import ScoreHistogram
from ziggurat.objectives.task import Task

_BUFFER_ROWS = 1 << 16
_NAN = float("nan")


class BinaryMetrics:
    """Streaming metrics of one task.

    Args:
        config: memory budgets and number of calibration bins.
        grouped: whether to compute GAUC; every update then needs ``groups_B``.
        task: the task, if its labels are rates, or negatives were dropped before; by default labels are 0 and 1.
    """

    def __init__(self, config: MetricsConfig | None = None, grouped: bool = False, task: Task | None = None) -> None:
        self.config = config or MetricsConfig()
        self.task = task or Task("")
        assert self.task.is_probability
        self.rows = 0
        self.not_finite_rows = 0
        self._histogram = ScoreHistogram(self.config.score_keys)
        self._groups = GroupedScores(self.config.gauc_entries) if grouped else None
        self._loss = ExactSum()
        self._prediction = ExactSum()
        self._buffer: list[MetricRows] = []
        self._buffered_rows = 0
        self._group_buffer: list[MetricRows] = []
        self._group_buffered_rows = 0

    @property
    def histogram(self) -> ScoreHistogram:
        """The histogram of scores per class, from which the curves are drawn."""
        self._flush()
        return self._histogram

    def update(
        self,
        logits_B: npt.ArrayLike,
        labels_B: npt.ArrayLike,
        weights_B: npt.ArrayLike | None = None,
        groups_B: npt.ArrayLike | None = None,
    ) -> None:
        """Counts a batch.

        Rows whose logit is infinite or not a number are counted and make every figure undefined.

        Args:
            logits_B: float32; other types are rounded to it.
            labels_B: 0 or 1.
            weights_B: example weights ≥ 0, or None for all ones.
            groups_B: integer group keys for GAUC.

        Raises:
            DataError: the input is invalid (see :func:`~ziggurat.metrics.rows.read_rows`), or group keys are missing.
        """
        rows, finite_B = self.read(logits_B, labels_B, weights_B, groups_B)
        self.add(rows if finite_B.all() else rows.take(finite_B), int((~finite_B).sum()))

    def read(
        self,
        logits_B: npt.ArrayLike,
        labels_B: npt.ArrayLike,
        weights_B: npt.ArrayLike | None = None,
        groups_B: npt.ArrayLike | None = None,
    ) -> tuple[MetricRows, npt.NDArray[np.bool_]]:
        """Returns the checked rows of an update, and a mask of those whose logit is finite.

        A negative stands for as many rows as were dropped for it before the log was written.
        """
        if self._groups is not None and groups_B is None:
            raise DataError("metrics: GAUC is enabled, but this batch has no group keys", "set data.group to a column")
        if self.task.known_rate < 1:
            factor_B = np.where(np.asarray(labels_B) == 0, 1 / self.task.known_rate, 1.0)
            weights_B = factor_B if weights_B is None else factor_B * np.asarray(weights_B)
        groups_B = groups_B if self._groups is not None else None
        return read_rows(logits_B, labels_B, weights_B, groups_B, soft=self.task.kind == "soft")

    def add(self, rows: MetricRows, not_finite_rows: int = 0) -> None:
        """Counts rows that :func:`~ziggurat.metrics.rows.read_rows` has checked; their logits must be finite."""
        self.rows += len(rows) + not_finite_rows
        self.not_finite_rows += not_finite_rows
        self._buffer.append(rows.ungrouped())
        self._buffered_rows += len(rows)
        if self._groups is not None:
            assert rows.groups_B is not None
            kept_B = self._groups.may_be_kept(rows.groups_B)
            self._group_buffer.append(rows if kept_B.all() else rows.take(kept_B))
            self._group_buffered_rows += len(self._group_buffer[-1])
        if self._buffered_rows >= max(min(_BUFFER_ROWS, self.config.score_keys), len(self._histogram.keys_K)):
            self._flush_scores()
        if self._group_buffered_rows >= max(_BUFFER_ROWS, self.config.gauc_entries):
            self._flush_groups()

    def merge(self, other: BinaryMetrics) -> None:
        """Adds the rows that ``other`` has counted; ``other`` is not changed."""
        assert (self.config, self.task) == (other.config, other.task)
        self._flush()
        other._flush()
        self.rows += other.rows
        self.not_finite_rows += other.not_finite_rows
        self._histogram.merge(other._histogram)
        self._loss.merge(other._loss)
        self._prediction.merge(other._prediction)
        assert (self._groups is None) == (other._groups is None)
        if self._groups is not None and other._groups is not None:
            self._groups.merge(other._groups)

    def compute(self) -> dict[str, float]:
        """Returns every figure by name (see ``names.METRICS``); nan where :meth:`undefined` gives a reason."""
        summary = self.summary()
        usable = summary.total > 0 and self.not_finite_rows == 0
        return {
            name: metric.compute(summary) if usable or metric.counts else _NAN
            for name, metric in METRICS.items()
            if metric.compute is not None and (summary.groups is not None or not metric.grouped)
        }

    def summary(self) -> Summary:
        """Returns what the rows amount to so far."""
        positives, negatives = (units / WEIGHT_UNITS for units in self.histogram.totals)
        self._flush()
        return Summary(
            config=self.config,
            rows=self.rows,
            positives=positives,
            negatives=negatives,
            loss=self._loss.value,
            prediction=self._prediction.value,
            histogram=self._histogram,
            groups=None if self._groups is None else self._groups.compute(),
        )

    def undefined(self) -> dict[str, str]:
        """Returns, for each figure that :meth:`compute` returns as nan, the reason why it is undefined."""
        return {name: self._reason(name) for name, value in self.compute().items() if math.isnan(value)}

    def state(self) -> dict[str, Any]:
        """Returns the state as plain integers and numpy arrays, to be pickled; the same rows give the same state."""
        self._flush()
        return {
            "rows": self.rows,
            "not_finite_rows": self.not_finite_rows,
            "scores": self._histogram.state(),
            "loss": self._loss.units,
            "prediction": self._prediction.units,
            "groups": None if self._groups is None else self._groups.state(),
        }

    @classmethod
    def from_state(cls, config: MetricsConfig, state: dict[str, Any], task: Task | None = None) -> BinaryMetrics:
        """Restores metrics from a :meth:`state` of another rank with the same config and task."""
        restored = cls(config, state["groups"] is not None, task)
        restored.rows, restored.not_finite_rows = int(state["rows"]), int(state["not_finite_rows"])
        restored._histogram = ScoreHistogram.from_state(config.score_keys, state["scores"])
        restored._loss, restored._prediction = ExactSum(state["loss"]), ExactSum(state["prediction"])
        if state["groups"] is not None:
            restored._groups = GroupedScores.from_state(config.gauc_entries, state["groups"])
        return restored

    def _reason(self, name: str) -> str:
        positives, negatives = self._histogram.totals
        if self.not_finite_rows:
            return f"{self.not_finite_rows} of {self.rows} logits are infinite or not a number"
        if self.rows == 0:
            return "no rows"
        if positives + negatives == 0:
            return f"all {self.rows} weights are zero"
        if positives == 0:
            return f"none of {self.rows} rows is positive"
        if negatives == 0:
            return f"all {self.rows} rows are positive"
        assert name == "gauc", name
        assert self._groups is not None
        if self._groups.compute().groups_kept == 0:
            return f"no group fits into gauc_entries = {self.config.gauc_entries}"
        return "no group holds both classes"

    def _flush(self) -> None:
        self._flush_scores()
        self._flush_groups()

    def _flush_scores(self) -> None:
        if self._buffered_rows:
            rows = concatenate(self._buffer)
            self._histogram.add(rows)
            for start in range(0, len(rows), _BUFFER_ROWS):  # in chunks that fit into the processor's cache
                loss_B, prediction_B = _loss_and_prediction(rows.take(slice(start, start + _BUFFER_ROWS)))
                self._loss.add(loss_B)
                self._prediction.add(prediction_B)
        self._buffer, self._buffered_rows = [], 0

    def _flush_groups(self) -> None:
        if self._groups is not None and self._group_buffered_rows:
            self._groups.add(concatenate(self._group_buffer))
        self._group_buffer, self._group_buffered_rows = [], 0


def _loss_and_prediction(rows: MetricRows) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns the weighted log-loss and the weighted predicted probability of each row, float64."""
    logit_B = rows.logits_B.astype(np.float64)
    decay_B = np.exp(-np.abs(logit_B))
    negative_margin_B = np.where(rows.positive_B, -logit_B, logit_B)
    weight_B = rows.units_B / WEIGHT_UNITS
    loss_B = (np.maximum(negative_margin_B, 0.0) + np.log1p(decay_B)) * weight_B
    if rows.part_units_B is not None:
        positive_B = rows.part_units_B / WEIGHT_UNITS
        margins_B = np.maximum(-logit_B, 0.0) * positive_B + np.maximum(logit_B, 0.0) * (weight_B - positive_B)
        loss_B = margins_B + np.log1p(decay_B) * weight_B
    prediction_B = np.where(logit_B >= 0, 1.0, decay_B) / (1.0 + decay_B) * weight_B
    return loss_B, prediction_B
