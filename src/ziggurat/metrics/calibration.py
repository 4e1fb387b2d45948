"""Calibration: binned predictions against observed rates, and the expected calibration error (ECE).

There are two kinds of bins. Both are computed from the score histogram, where the mean logit of a key represents all
of its rows; this is exact while the histogram is at level 0.

- Equal width: [0, 1/n), [1/n, 2/n), … on the probability. This is the usual definition. Where click rates are low,
  nearly all rows fall into the first bin and the error is hardly measured.
- Equal mass: rows are ordered by score and cut into n parts of the same weight. A key is never split: it falls into the
  bin that contains the middle of its weight, so heavy ties give fewer, fuller bins.

ECE = Σ_b (w_b / Σ w) · |mean prediction_b − observed rate_b|   (Naeini et al. 2015; Nixon et al. 2019 for equal mass)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.rows import WEIGHT_UNITS
from ziggurat.metrics.scores import ScoreHistogram
from ziggurat.objectives.task import sigmoid

Float64Array = npt.NDArray[np.float64]
Cut = Literal["width", "mass"]


@dataclass(frozen=True, slots=True)
class CalibrationBins:
    """The non-empty bins, ordered by ascending prediction; all arrays are float64 of shape (N,)."""

    mean_prediction_N: Float64Array
    observed_rate_N: Float64Array
    weight_N: Float64Array

    @property
    def expected_error(self) -> float:
        """The ECE; nan if there are no rows."""
        total = self.weight_N.sum()
        if total == 0:
            return float("nan")
        return float((np.abs(self.mean_prediction_N - self.observed_rate_N) * self.weight_N).sum() / total)


def calibration_bins(histogram: ScoreHistogram, bins: int, cut: Cut) -> CalibrationBins:
    """Cuts the predictions into ``bins`` bins and returns each bin's mean prediction and share of positives."""
    weight_K = (histogram.positive_K + histogram.negative_K) / WEIGHT_UNITS
    prediction_K = sigmoid(histogram.logits)
    if cut == "width":
        position_K = prediction_K
    else:
        position_K = (np.cumsum(weight_K) - weight_K / 2) / max(float(weight_K.sum()), 1 / WEIGHT_UNITS)
    bin_K = np.minimum((position_K * bins).astype(np.int64), bins - 1)
    all_weight_N = np.bincount(bin_K, weight_K, bins).astype(np.float64)
    filled = all_weight_N > 0
    weight_N = all_weight_N[filled]
    predicted_N = np.bincount(bin_K, weight_K * prediction_K, bins)[filled]
    positive_N = np.bincount(bin_K, histogram.positive_K / WEIGHT_UNITS, bins)[filled]
    return CalibrationBins(predicted_N / weight_N, positive_N / weight_N, weight_N)
