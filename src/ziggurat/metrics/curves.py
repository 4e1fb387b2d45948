"""The curves of one task in the report: ROC, calibration and score histograms, computed from the streaming state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.calibration import CalibrationBins, calibration_bins
from ziggurat.metrics.pairs import PairHistogram
from ziggurat.metrics.ranking import RocCurve, roc_curve
from ziggurat.metrics.rows import WEIGHT_UNITS
from ziggurat.metrics.scores import ScoreHistogram
from ziggurat.objectives.task import sigmoid

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PredictionHistogram:
    """The share of each class over predicted probability, in N bins of equal width between 0 and ``upper``.

    Attributes:
        upper: upper end of the last bin; the few predictions above it are counted in that bin.
        positive_N: share of all positives in each bin; the sum is 1 (all 0 without positives).
        negative_N: the same for the negatives.
    """

    upper: float
    positive_N: Float64Array
    negative_N: Float64Array


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of one task on one split; the calibration bins are of equal mass."""

    roc: RocCurve
    calibration: CalibrationBins
    predictions: PredictionHistogram


def curves(histogram: ScoreHistogram, calibration_bin_count: int) -> Curves:
    """Returns the three curves of a task."""
    return Curves(
        roc_curve(histogram),
        calibration_bins(histogram, calibration_bin_count, "mass"),
        prediction_histogram(histogram),
    )


@dataclass(frozen=True, slots=True)
class ValueBins:
    """Labels that are numbers by their prediction, in N bins of about equal mass, ascending; float64, shape (N,)."""

    mean_prediction_N: Float64Array
    mean_label_N: Float64Array
    weight_N: Float64Array


def value_bins(pairs: PairHistogram, bins: int) -> ValueBins:
    """Returns the mean prediction and the mean label in bins of equal mass; rows with equal predictions share a bin."""
    predictions, order = np.unique(pairs.predictions, return_inverse=True)
    units_E = pairs.units_E / WEIGHT_UNITS
    weight_K = np.bincount(order, units_E, len(predictions))
    label_K = np.bincount(order, units_E * pairs.labels, len(predictions))
    position_K = (np.cumsum(weight_K) - weight_K / 2) / max(float(weight_K.sum()), 1 / WEIGHT_UNITS)
    bin_K = np.minimum((position_K * bins).astype(np.int64), bins - 1)
    weight_N = np.bincount(bin_K, weight_K, bins).astype(np.float64)
    filled = weight_N > 0
    predicted_N = np.bincount(bin_K, weight_K * predictions, bins)[filled] / weight_N[filled]
    return ValueBins(predicted_N, np.bincount(bin_K, label_K, bins)[filled] / weight_N[filled], weight_N[filled])


def prediction_histogram(histogram: ScoreHistogram, bins: int = 40) -> PredictionHistogram:
    """Returns the distribution of predictions of both classes.

    The axis ends just above the 99.5 % quantile, so that rare events are visible as well.
    """
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
