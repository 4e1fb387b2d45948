"""AUC and the ROC curve from a score histogram."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.scores import ScoreHistogram

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RocCurve:
    """Points of the ROC curve from (0, 0) to (1, 1), strictest threshold first; all float64, shape (P,)."""

    false_positive_rate_P: Float64Array
    true_positive_rate_P: Float64Array


def auc(histogram: ScoreHistogram) -> float:
    """Returns P(score of a random positive > that of a random negative), ties counting half; nan if a class is missing.

    AUC = Σ_k pos_k (Σ_{j<k} neg_j + neg_k / 2) / (Σ pos · Σ neg)   (the Mann-Whitney statistic)
    """
    positives, negatives = histogram.totals
    if positives == 0 or negatives == 0:
        return float("nan")
    below_K = np.cumsum(histogram.negative_K) - histogram.negative_K
    wins_K = histogram.positive_K * (below_K + histogram.negative_K / 2)
    return float(wins_K.sum() / positives / negatives)


def roc_curve(histogram: ScoreHistogram, max_points: int = 200) -> RocCurve:
    """Returns the ROC curve; empty if a class is missing.

    It is thinned to at most ``max_points`` points, evenly spaced along the sum of both rates.
    """
    positives, negatives = histogram.totals
    if positives == 0 or negatives == 0:
        return RocCurve(np.empty(0), np.empty(0))
    true = np.concatenate([[0], np.cumsum(histogram.positive_K[::-1])]) / positives
    false = np.concatenate([[0], np.cumsum(histogram.negative_K[::-1])]) / negatives
    if len(true) > max_points:
        chosen = np.unique(np.searchsorted(true + false, np.linspace(0.0, 2.0, max_points)).clip(0, len(true) - 1))
        true, false = true[chosen], false[chosen]
    return RocCurve(false, true)
