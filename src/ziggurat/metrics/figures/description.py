"""What the rows and the predictions are like."""

from __future__ import annotations

from ziggurat.metrics.metric import Metric

BASE_RATE = Metric("base_rate", "Base rate", "neither", "Share of positives.", lambda summary: summary.base_rate)
MEAN_PREDICTION = Metric(
    "mean_prediction",
    "Mean prediction",
    "neither",
    "Mean predicted probability.",
    lambda summary: summary.prediction / summary.total,
)
ROWS = Metric("rows", "Rows", "neither", "Rows evaluated.", lambda summary: float(summary.rows), counts=True)
