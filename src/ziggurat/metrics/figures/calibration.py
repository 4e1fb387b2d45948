"""Whether predicted probabilities come true.

Calibration: He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook", section 3.
"""

from __future__ import annotations

import math

from ziggurat.metrics.calibration import calibration_bins
from ziggurat.metrics.metric import Metric, Summary


def _calibration(summary: Summary) -> float:
    return summary.prediction / summary.positives if summary.positives > 0 else math.nan


EXPECTED_ERROR = Metric(
    "ece",
    "ECE",
    "lower",
    "Mean gap between predicted and observed rate over bins of equal width.",
    lambda summary: calibration_bins(summary.histogram, summary.config.calibration_bins, "width").expected_error,
)
EXPECTED_ERROR_BY_MASS = Metric(
    "ece_mass",
    "ECE, equal mass",
    "lower",
    "The same over bins that hold equally many rows.",
    lambda summary: calibration_bins(summary.histogram, summary.config.calibration_bins, "mass").expected_error,
)
CALIBRATION = Metric(
    "calibration", "Calibration", "neither", "Sum of predictions over sum of labels; best at 1.", _calibration
)
