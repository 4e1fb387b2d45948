"""The data of the baselines: the encoded columns of a dataset as plain arrays.

Shape legend: B rows, F dense features, N ids of a bag over all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.hashing import hash_integers
from ziggurat.metrics.value_losses import main_losses
from ziggurat.objectives.losses import Squared
from ziggurat.objectives.task import Task

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JaggedColumn:
    """Ids of a bag or sequence: row b has ``ids_N[offsets[b] : offsets[b + 1]]``; offsets are int64, (B + 1,)."""

    offsets: Int64Array
    ids_N: npt.NDArray[np.integer[Any]]

    @property
    def lengths_B(self) -> Int64Array:  # noqa: N802 (a shape suffix)
        return np.diff(self.offsets)

    def take(self, rows: Int64Array) -> JaggedColumn:
        """Returns only these rows."""
        lengths = self.lengths_B[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return JaggedColumn(offsets, self.ids_N[np.repeat(self.offsets[:-1][rows], lengths) + within])


@dataclass(frozen=True, slots=True)
class BaselineSplit:
    """One split of one task.

    Attributes:
        dense_BF: float32, without missing values.
        categorical: feature → ids, (B,).
        bags: feature → ids of bags and of sequences (whose order the baselines ignore).
        labels_B: the labels, as encoded.
        weights_B: example weights, times those of the label by itself, or None.
    """

    dense_BF: npt.NDArray[np.float32]
    categorical: Mapping[str, npt.NDArray[np.integer[Any]]]
    bags: Mapping[str, JaggedColumn]
    labels_B: npt.NDArray[np.float32]
    weights_B: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.labels_B)

    def take(self, rows: Int64Array) -> BaselineSplit:
        """Returns only these rows."""
        return BaselineSplit(
            self.dense_BF[rows],
            {name: ids_B[rows] for name, ids_B in self.categorical.items()},
            {name: bag.take(rows) for name, bag in self.bags.items()},
            self.labels_B[rows],
            None if self.weights_B is None else self.weights_B[rows],
        )

    def capped(self, cap: int, seed: int) -> BaselineSplit:
        """Returns at most ``cap`` rows, chosen by :func:`subsample_rows`."""
        return self if len(self) <= cap else self.take(subsample_rows(len(self), cap, seed))


BINARY = Task("")
"""A label of 0 and 1."""


@dataclass(frozen=True, slots=True)
class BaselineData:
    """One task's splits: models are fitted on ``train``, tuned on ``validation`` and evaluated on ``test``."""

    train: BaselineSplit
    validation: BaselineSplit
    test: BaselineSplit
    task: Task = BINARY

    def check(self) -> None:
        """Validates that a model can be fitted and tuned on the data.

        Raises:
            DataError: the training labels are all of one class, or all equal, or there are no validation rows.
        """
        if self.task.kind != "binary":
            self._check_numbers()
            return
        positives = int((self.train.labels_B > 0.5).sum())
        if positives in {0, len(self.train)}:
            raise DataError(
                f"baselines: {positives} of {len(self.train)} training labels are positive; both classes are needed",
                "check the label's threshold, or leave the baselines out",
            )
        self._check_validation()

    def _check_numbers(self) -> None:
        if len(np.unique(self.train.labels_B[:1_000_000])) < 2:
            raise DataError("baselines: all training labels are equal", "leave the baselines out")
        self._check_validation()

    def _check_validation(self) -> None:
        if len(self.validation) == 0:
            raise DataError("baselines: no validation rows to tune on", "give data.split a validation share")

    def capped(self, row_cap: int, seed: int) -> BaselineData:
        """Returns the data with at most ``row_cap`` training rows and a quarter of it validation rows; test is
        whole."""
        validation = self.validation.capped(max(1, row_cap // 4), seed)
        return BaselineData(self.train.capped(row_cap, seed), validation, self.test, self.task)


@dataclass(frozen=True, slots=True)
class BaselineResult:
    """The result of a baseline.

    Attributes:
        name: its name in the comparison table.
        predictions_B: float64, one per test row, in the label's units; (B, levels) of a quantile label.
        seconds: wall time of preparing, tuning over the whole grid and predicting.
        settings: the chosen settings.
        validation_loss: the loss of these settings on the validation rows.
        tried: each setting tried and its validation loss.
        description: how it was tuned, in a sentence or two for the report.
    """

    name: str
    predictions_B: npt.NDArray[np.float64]
    seconds: float
    settings: dict[str, Any]
    validation_loss: float
    tried: list[tuple[dict[str, Any], float]]
    description: str

    @property
    def logits_B(self) -> npt.NDArray[np.float64]:  # noqa: N802 (a shape suffix)
        """The probabilities as logits, for ``BinaryMetrics``; 0 and 1 become ∓36.7, so that they are finite."""
        epsilon = np.finfo(np.float64).eps / 2
        clipped_B = np.clip(self.predictions_B, epsilon, 1 - epsilon)
        return np.log(clipped_B) - np.log1p(-clipped_B)


def subsample_rows(rows: int, cap: int, seed: int) -> Int64Array:
    """Returns ``cap`` of ``rows`` row numbers, ascending: those with the smallest hashes. The same on every machine."""
    if rows <= cap:
        return np.arange(rows)
    return np.sort(np.argpartition(hash_integers(np.arange(rows), seed), cap)[:cap])


def log_loss(
    probabilities_B: npt.NDArray[np.float64], labels_B: FloatArray, weights_B: FloatArray | None = None
) -> float:
    """Returns the mean negative log-likelihood in nats, with probabilities clipped as in scikit-learn."""
    epsilon = np.finfo(np.float64).eps
    clipped_B = np.clip(probabilities_B, epsilon, 1 - epsilon)
    loss_B = -(labels_B * np.log(clipped_B) + (1 - labels_B) * np.log1p(-clipped_B))
    return float(np.average(loss_B, weights=weights_B))


def task_loss(task: Task, predictions_B: npt.NDArray[np.float64], split: BaselineSplit) -> float:
    """Returns the mean loss of predictions on a split, by which settings are chosen."""
    if task.is_probability:
        return log_loss(predictions_B, split.labels_B, split.weights_B)
    fitted = fitted_task(task)
    label_B, columns = split.labels_B.astype(np.float64), predictions_B.reshape(len(predictions_B), -1)
    return float(np.average(main_losses(fitted, columns, columns[:, 0], label_B), weights=split.weights_B))


def fitted_task(task: Task) -> Task:
    """Returns the task that baselines are fitted for: they predict the level of an ordinal label as a number."""
    return Task(task.name, "regression", Squared()) if task.kind == "ordinal" else task


def settings_text(settings: Mapping[str, Any]) -> str:
    """Formats settings as ``C 0.1, solver lbfgs``."""
    return ", ".join(f"{key} {value}" for key, value in settings.items())
