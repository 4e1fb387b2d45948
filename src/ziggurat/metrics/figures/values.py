"""How near predictions of numbers are to their labels, and how well they order them."""

from __future__ import annotations

import math

import numpy as np

from ziggurat.metrics.pairs import xauc
from ziggurat.metrics.rows import WEIGHT_UNITS
from ziggurat.metrics.value_losses import constant_loss
from ziggurat.metrics.value_metric import ValueMetric, ValueSummary
from ziggurat.objectives.losses import Log1p, Poisson, Quantile, Squared, Tweedie


def _explained(summary: ValueSummary) -> float:
    return 1 - summary.mean("squared_error") / summary.variance if summary.variance > 0 else math.nan


def _calibration(summary: ValueSummary) -> float:
    return summary.sums["prediction"] / summary.sums["label"] if summary.sums["label"] > 0 else math.nan


def _relative(summary: ValueSummary) -> float:
    if isinstance(summary.task.loss, Squared):
        constant = summary.variance
    else:
        constant = constant_loss(summary.task, summary.labels.logits, summary.labels.positive_K / WEIGHT_UNITS)
    return summary.mean("loss") / constant if constant > 0 else math.nan


def _coverage_gap(summary: ValueSummary) -> float:
    assert isinstance(summary.task.loss, Quantile)
    shares = np.asarray(summary.covered) / summary.total
    return float(np.abs(shares - np.asarray(summary.task.loss.levels)).mean())


RMSE = ValueMetric(
    "rmse",
    "RMSE",
    "lower",
    "Root of the mean squared error, in the label's units.",
    lambda summary: math.sqrt(summary.mean("squared_error")),
)
MAE = ValueMetric(
    "mae", "MAE", "lower", "Mean absolute error, in the label's units.", lambda summary: summary.mean("absolute_error")
)
R2 = ValueMetric(
    "r2", "R²", "higher", "Share of the labels' variance that is explained; 0 is that of their mean.", _explained
)
RMSLE = ValueMetric(
    "rmsle",
    "RMSLE",
    "lower",
    "Root of the mean squared error of log(1 + prediction).",
    lambda summary: math.sqrt(summary.mean("loss")),
    lambda task: isinstance(task.loss, Log1p),
)
DEVIANCE = ValueMetric(
    "deviance",
    "Deviance",
    "lower",
    "Mean deviance of the Poisson or Tweedie distribution that the loss assumes.",
    lambda summary: summary.mean("loss"),
    lambda task: isinstance(task.loss, Poisson | Tweedie),
)
PINBALL = ValueMetric(
    "pinball",
    "Pinball loss",
    "lower",
    "Mean pinball loss over the quantile levels, in the label's units.",
    lambda summary: summary.mean("loss"),
    lambda task: isinstance(task.loss, Quantile),
)
COVERAGE_GAP = ValueMetric(
    "coverage_gap",
    "Coverage gap",
    "lower",
    "Mean gap between a quantile's level and the share of labels at or below its prediction.",
    _coverage_gap,
    lambda task: isinstance(task.loss, Quantile),
)
LEVEL_LOG_LOSS = ValueMetric(
    "log_loss",
    "Log-loss",
    "lower",
    "Mean negative log-likelihood of the labels' levels, in nats.",
    lambda summary: summary.mean("loss"),
    lambda task: task.kind == "ordinal",
)
RELATIVE_LOSS = ValueMetric(
    "relative_loss",
    "Relative loss",
    "lower",
    "Loss over that of the best constant prediction, which NE is for a binary label; 1 means nothing was learnt.",
    _relative,
)
XAUC = ValueMetric(
    "xauc",
    "XAUC",
    "higher",
    "Chance that of two rows the one with the larger label has the larger prediction; 0.5 is guessing.",
    lambda summary: xauc(summary.pairs),
)
VALUE_CALIBRATION = ValueMetric(
    "calibration", "Calibration", "neither", "Sum of predictions over sum of labels; best at 1.", _calibration
)
MEAN_LABEL = ValueMetric(
    "mean_label", "Mean label", "neither", "Mean of the labels.", lambda summary: summary.mean("label")
)
VALUE_MEAN_PREDICTION = ValueMetric(
    "mean_prediction", "Mean prediction", "neither", "Mean prediction.", lambda summary: summary.mean("prediction")
)
VALUE_ROWS = ValueMetric("rows", "Rows", "neither", "Rows evaluated.", lambda summary: float(summary.rows), counts=True)
