"""What the report draws of one task: ROC, calibration, score histograms, all from the streaming state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.calibration import CalibrationBins, calibration_bins, sigmoid
from ziggurat.metrics.ranking import RocCurve, roc_curve
from ziggurat.metrics.scores import ScoreHistogram

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PredictionHistogram:
    """Weight of each class over predicted probability, N bins of equal width between 0 and ``upper``.

    Attributes:
        upper: where the bins end; the few predictions above it are in the last bin.
        positive_N: share of all positives in each bin, sums to 1 (all 0 without positives).
        negative_N: likewise for the negatives.
    """

    upper: float
    positive_N: Float64Array
    negative_N: Float64Array


@dataclass(frozen=True, slots=True)
class Curves:
    """Everything drawable of one task on one split; calibration bins are of equal mass."""

    roc: RocCurve
    calibration: CalibrationBins
    predictions: PredictionHistogram


def curves(histogram: ScoreHistogram, calibration_bin_count: int) -> Curves:
    """The three curves of a task."""
    return Curves(
        roc_curve(histogram),
        calibration_bins(histogram, calibration_bin_count, "mass"),
        prediction_histogram(histogram),
    )


def prediction_histogram(histogram: ScoreHistogram, bins: int = 40) -> PredictionHistogram:
    """Both classes' predictions; the axis ends just above the 99.5 % quantile, so that rare events show too."""
    probability_K = sigmoid(histogram.logits)
    weight_K = (histogram.positive_K + histogram.negative_K).astype(np.float64)
    total = float(weight_K.sum())
    if total == 0:
        return PredictionHistogram(1.0, np.zeros(bins), np.zeros(bins))
    quantile = float(probability_K[np.searchsorted(np.cumsum(weight_K), 0.995 * total)])
    step = 10.0 ** np.floor(np.log10(max(quantile, 1e-12))) / 2
    upper = min(1.0, float(np.ceil(quantile / step) * step) or 1e-12)
    bin_K = np.minimum((probability_K / upper * bins).astype(np.int64), bins - 1)

    def share(units_K: npt.NDArray[np.int64]) -> Float64Array:
        return np.bincount(bin_K, units_K, bins) / max(float(units_K.sum()), 1.0)

    return PredictionHistogram(upper, share(histogram.positive_K), share(histogram.negative_K))
