"""What the scores of a search of pipelines are, for people: scores themselves are always such that more is better."""

from __future__ import annotations

from dataclasses import dataclass

from ziggurat.metrics.names import higher_is_better

_LESS_IS_BETTER = ("log_loss",)


@dataclass(frozen=True, slots=True)
class ScoredBy:
    """What scores are.

    Attributes:
        metric: the metric.
        sign: 1.0, or -1.0 if less of the metric is better, so that a score is minus the metric.
        how: where it was measured, in words.
    """

    metric: str
    sign: float
    how: str

    @property
    def direction(self) -> str:
        """Which values are better."""
        return "more is better" if self.sign > 0 else "less is better"

    @property
    def score(self) -> str:
        """What a score is."""
        return self.metric if self.sign > 0 else f"minus the {self.metric}"

    def value(self, score: float) -> float:
        """Returns the metric of a score."""
        return self.sign * score

    def shown(self, score: float) -> str:
        """Returns the metric of a score, as text."""
        return f"{self.value(score):.6g}"


def by_folds(metric: str) -> ScoredBy:
    """Returns what the scores of a cross-validation are."""
    sign = -1.0 if metric in _LESS_IS_BETTER else 1.0
    return ScoredBy(metric, sign, "cross-validated on training rows alone")


def by_model(monitor: str) -> ScoredBy:
    """Returns what the scores are where each evaluation trains the model of the config."""
    sign = 1.0 if higher_is_better(monitor) else -1.0
    return ScoredBy(monitor, sign, "each a training of the model, judged on the validation split")
