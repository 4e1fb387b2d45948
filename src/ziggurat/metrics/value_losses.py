"""The loss of a row in the label's units, in float64, and that of the best constant prediction.

deviance (Poisson)  2 (y log(y / μ) − y + μ)
deviance (Tweedie)  2 (y^(2−p) / ((1−p)(2−p)) − y μ^(1−p) / (1−p) + μ^(2−p) / (2−p))
pinball             mean over the levels q of max(q (y − p_q), (q − 1) (y − p_q))
log-loss (ordinal)  −log P(level of y)

Shape legend: B rows, C columns, K distinct labels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.objectives.losses import Huber, Log1p, Poisson, Quantile, Tweedie
from ziggurat.objectives.task import Task, level_shares

Float64Array = npt.NDArray[np.float64]

LEAST_SHARE = 1e-300
"""The least probability of a level, so that its logarithm is finite."""


def main_losses(
    task: Task, columns_BC: Float64Array, prediction_B: Float64Array, label_B: Float64Array
) -> Float64Array:
    """Returns the loss of each row, (B,), whose mean is the task's main metric or, for a root, its square."""
    match task.loss:
        case Huber(delta=delta):
            return huber(prediction_B - label_B, delta)
        case Log1p():
            return (_log1p(prediction_B) - _log1p(label_B)) ** 2
        case Poisson():
            return poisson_deviance(prediction_B, label_B)
        case Tweedie(power=power):
            return tweedie_deviance(prediction_B, label_B, power)
        case Quantile(levels=levels):
            return pinball(np.sort(columns_BC, axis=1), label_B, levels)
        case None:
            level_B = np.searchsorted(np.asarray(task.levels), label_B).clip(max=len(task.levels) - 1)
            share_B = level_shares(columns_BC)[np.arange(len(label_B)), level_B]
            return -np.log(np.maximum(share_B, LEAST_SHARE))
        case _:
            return (prediction_B - label_B) ** 2


def constant_loss(task: Task, labels_K: Float64Array, weights_K: Float64Array) -> float:
    """Returns the mean loss of the best constant prediction for labels with these weights; ascending labels."""
    total = float(weights_K.sum())
    if total <= 0:
        return float("nan")
    mean = float((labels_K * weights_K).sum() / total)
    match task.loss:
        case Huber(delta=delta):
            loss_K = huber(labels_K - _huber_location(labels_K, weights_K, delta), delta)
        case Log1p():
            logs = _log1p(labels_K)
            loss_K = (logs - (logs * weights_K).sum() / total) ** 2
        case Poisson():
            loss_K = poisson_deviance(np.full(len(labels_K), mean), labels_K)
        case Tweedie(power=power):
            loss_K = tweedie_deviance(np.full(len(labels_K), mean), labels_K, power)
        case Quantile(levels=levels):
            reached_K = np.cumsum(weights_K)
            at = np.searchsorted(reached_K, np.asarray(levels) * total).clip(max=len(labels_K) - 1)
            loss_K = pinball(np.broadcast_to(labels_K[at], (len(labels_K), len(levels))), labels_K, levels)
        case None:
            level_K = np.searchsorted(np.asarray(task.levels), labels_K).clip(max=len(task.levels) - 1)
            shares_L = np.bincount(level_K, weights_K, len(task.levels)) / total
            loss_K = -np.log(np.maximum(shares_L, LEAST_SHARE))[level_K]
        case _:
            loss_K = (labels_K - mean) ** 2
    return float((loss_K * weights_K).sum() / total)


def huber(error_B: Float64Array, delta: float) -> Float64Array:
    """Returns e² / 2 up to ``delta``, beyond it delta·(|e| − delta / 2)."""
    size_B = np.abs(error_B)
    return np.where(size_B <= delta, size_B**2 / 2, delta * (size_B - delta / 2))


def _log1p(values: Float64Array) -> Float64Array:
    from scipy.special import log1p  # slow to import and seldom needed

    return log1p(values)


def poisson_deviance(mean_B: Float64Array, label_B: Float64Array) -> Float64Array:
    """Returns the deviance of each row; means are above 0."""
    from scipy.special import xlogy  # slow to import and seldom needed

    return 2 * (xlogy(label_B, label_B / mean_B) - label_B + mean_B)


def tweedie_deviance(mean_B: Float64Array, label_B: Float64Array, power: float) -> Float64Array:
    """Returns the deviance of each row, for a power between 1 and 2; means are above 0."""
    one, two = 1 - power, 2 - power
    return 2 * (label_B**two / (one * two) - label_B * mean_B**one / one + mean_B**two / two)


def pinball(quantiles_BC: Float64Array, label_B: Float64Array, levels: tuple[float, ...]) -> Float64Array:
    """Returns the mean pinball loss of each row over its levels."""
    levels_C, missed_BC = np.asarray(levels), label_B[:, None] - quantiles_BC
    return np.maximum(levels_C * missed_BC, (levels_C - 1) * missed_BC).mean(axis=1)


def _huber_location(labels_K: Float64Array, weights_K: Float64Array, delta: float) -> float:
    """Returns the constant of least Huber loss, by bisection of its derivative."""
    low, high = float(labels_K[0]), float(labels_K[-1])
    for _ in range(60):
        middle = (low + high) / 2
        if float((np.clip(labels_K - middle, -delta, delta) * weights_K).sum()) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
