"""The models that judge pipelines: logistic regression and a small MLP, trained on transformed blocks."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pydantic
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from ziggurat.core.config import Config
from ziggurat.search.pipelines.table import Floats, Ints

TableMetric = Literal["log_loss", "auc", "accuracy"]
_NEWTON_PARAMETERS = 256
_TINY = 1e-12
_BATCH = 128


class _Task(Config):
    metric: TableMetric = "auc"
    """What decides on the validation folds: ``auc`` (of each class against the rest, if there are more than two),
    ``accuracy`` or ``log_loss``."""
    folds: int = pydantic.Field(default=5, ge=2, le=50)
    """Number of folds of the cross-validation."""


class LogisticRegressionTask(_Task):
    """scikit-learn's logistic regression."""

    name: Literal["logistic_regression"] = "logistic_regression"
    strength: float = pydantic.Field(default=1.0, gt=0.0)
    """Inverse of the penalty on squared weights (``C``)."""

    def model(self, width: int, classes: int, seed: int) -> Any:
        """Returns a model that is not fitted; Newton's method where its matrix is small."""
        small = (width + 1) * (1 if classes == 2 else classes) <= _NEWTON_PARAMETERS
        return LogisticRegression(C=self.strength, solver="newton-cholesky" if small else "lbfgs", max_iter=200)


class MLPTask(_Task):
    """scikit-learn's multi-layer perceptron, trained by Adam."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[pydantic.PositiveInt, ...] = (32,)
    """Widths of the hidden layers."""
    epochs: int = pydantic.Field(default=40, ge=1)
    """Passes over the training rows."""
    learning_rate: float = pydantic.Field(default=3e-3, gt=0.0)
    """The step size of Adam."""
    penalty: float = pydantic.Field(default=1e-3, ge=0.0)
    """Factor of the squared weights (``alpha``)."""

    def model(self, width: int, classes: int, seed: int) -> Any:
        """Returns a model that is not fitted."""
        batch: Any = _BATCH
        return MLPClassifier(
            hidden_layer_sizes=self.hidden, alpha=self.penalty, learning_rate_init=self.learning_rate,
            max_iter=self.epochs, n_iter_no_change=self.epochs, batch_size=batch, random_state=seed,
        )  # fmt: skip


def fitted_model(task: LogisticRegressionTask | MLPTask, train: Floats, labels: Ints, classes: int, seed: int) -> Any:
    """Returns the task's model, fitted on (n, w) training rows."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return task.model(train.shape[1], classes, seed).fit(train, labels)


def probabilities(model: Any, rows: Floats, classes: int) -> Floats:
    """Returns (n, classes); a class that the training rows lacked has probability 0."""
    found = np.asarray(model.predict_proba(rows), np.float64)
    every = np.zeros((len(rows), classes))
    every[:, np.asarray(model.classes_, np.int64)] = found
    return every


def score(metric: TableMetric, predicted: Floats, labels: Ints) -> float:
    """Returns a score of which more is better: accuracy, area under the curve, or the negative log-loss.

    The area is the mean over the classes, each against the rest, of those that have rows on both sides.

    Raises:
        ValueError: the predictions are not finite, or no class has rows on both sides.
    """
    if not np.isfinite(predicted).all():
        raise ValueError("a predicted probability is not finite")
    if metric == "accuracy":
        return float((predicted.argmax(axis=1) == labels).mean())
    if metric == "log_loss":
        return float(np.log(np.maximum(predicted[np.arange(len(labels)), labels], _TINY)).mean())
    if predicted.shape[1] == 2:
        return area_under_curve(predicted[:, 1], labels == 1)
    sides = [labels == each for each in range(predicted.shape[1])]
    areas = [
        area_under_curve(predicted[:, each], side) for each, side in enumerate(sides) if 0 < side.sum() < len(side)
    ]
    if not areas:
        raise ValueError("every class lacks rows on one side")
    return float(np.mean(areas))


def area_under_curve(predicted: Floats, positive: npt.NDArray[np.bool_]) -> float:
    """Returns the area under the ROC curve, by mean ranks: ties count half. It is scikit-learn's, many times faster.

    Raises:
        ValueError: there are rows of one side only.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        raise ValueError("a class lacks rows on one side")
    _, inverse, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    above = float(mean_ranks[inverse[positive]].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)
