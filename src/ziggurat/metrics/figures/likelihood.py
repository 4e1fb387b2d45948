"""How likely the labels are under the predictions.

NE: He et al. 2014, "Practical lessons from predicting clicks on ads at Facebook", eq. 3.
"""

from __future__ import annotations

import math

from ziggurat.metrics.metric import Metric, Summary


def _log_loss(summary: Summary) -> float:
    return summary.loss / summary.total


def _normalised_entropy(summary: Summary) -> float:
    entropy = _entropy(summary.base_rate)
    return _log_loss(summary) / entropy if entropy > 0 else math.nan


def _entropy(rate: float) -> float:
    """Returns the entropy, in nats, of a Bernoulli variable with probability ``rate``; 0 if ``rate`` is 0 or 1."""
    if not 0.0 < rate < 1.0:
        return 0.0
    return -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))


LOG_LOSS = Metric("log_loss", "Log-loss", "lower", "Mean negative log-likelihood of the labels, in nats.", _log_loss)
LOSS = Metric("loss", "Loss", "lower", "The objective that training minimises.")
NORMALISED_ENTROPY = Metric(
    "ne",
    "NE",
    "lower",
    "Log-loss over that of always predicting the base rate; 1 means nothing was learnt.",
    _normalised_entropy,
)
