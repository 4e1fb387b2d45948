"""The description of a label as a task of the model: its kind, its loss, and how many numbers the model gives for it.

Shape legend: B rows, C columns of a task: what :class:`~ziggurat.objectives.outputs.Outputs` gives for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ziggurat.objectives.losses import Huber, Log1p, LossConfig, Poisson, Quantile, Squared, Tweedie

LabelKind = Literal["binary", "soft", "regression", "ordinal"]

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """A label that a model predicts.

    Attributes:
        name: the label's name.
        kind: ``binary`` (0 or 1), ``soft`` (0 to 1), ``regression`` (a number) or ``ordinal`` (one of ``levels``).
        loss: the loss of a regression label; None for other kinds.
        levels: the values of an ordinal label, ascending; empty for other kinds, and while they are not known yet.
        weight: how much the label's loss counts beside those of other labels.
        negative_rate: the share of negatives that were kept where the model was trained, of a binary label; predictions
            are corrected by it.
        known_rate: the part of ``negative_rate`` that was dropped before the log was written; in evaluation a negative
            stands for 1 / ``known_rate`` rows.
    """

    name: str
    kind: LabelKind = "binary"
    loss: LossConfig | None = None
    levels: tuple[float, ...] = ()
    weight: float = 1.0
    negative_rate: float = 1.0
    known_rate: float = 1.0

    @property
    def is_probability(self) -> bool:
        """Whether the prediction is a probability, of a label that is 0, 1 or between them."""
        return self.kind in {"binary", "soft"}

    @property
    def outputs(self) -> int:
        """How many numbers a model returns for a row of this task."""
        return len(self.loss.levels) if isinstance(self.loss, Quantile) else 1

    @property
    def columns(self) -> int:
        """C: how many numbers losses and predictions are computed from."""
        if self.kind == "ordinal":
            assert self.levels, self.name
            return len(self.levels) - 1
        return self.outputs

    @property
    def main_metric(self) -> str:
        """The metric that says best how well this label is predicted, of those that the loss aims at."""
        match self.loss:
            case Squared():
                return "rmse"
            case Huber():
                return "mae"
            case Log1p():
                return "rmsle"
            case Poisson() | Tweedie():
                return "deviance"
            case Quantile():
                return "pinball"
            case None:
                return "log_loss"

    @property
    def middle(self) -> int:
        """The position of the column that is the prediction of a quantile label."""
        assert isinstance(self.loss, Quantile)
        return int(np.argmin(np.abs(np.asarray(self.loss.levels) - 0.5)))

    def predictions(self, columns_BC: npt.NDArray[np.float32]) -> Float64Array:
        """Returns the predictions (B,) in the label's units: a probability, a mean, the median, the expected level."""
        with np.errstate(over="ignore"):
            return self._predictions(columns_BC.astype(np.float64))

    def further(self, columns_BC: npt.NDArray[np.float32]) -> dict[str, Float64Array]:
        """Returns further predictions (B,) by name: those of each quantile level, the probability of each level."""
        columns = columns_BC.astype(np.float64)
        if isinstance(self.loss, Quantile):
            ordered = np.sort(columns, axis=1)
            return {f"{level:g}": ordered[:, number] for number, level in enumerate(self.loss.levels)}
        if self.kind == "ordinal":
            shares_BL = level_shares(columns)
            return {f"{level:g}": shares_BL[:, number] for number, level in enumerate(self.levels)}
        return {}

    def _predictions(self, columns: Float64Array) -> Float64Array:
        if self.is_probability:
            return sigmoid(columns[:, 0])
        if self.kind == "ordinal":
            return level_shares(columns) @ np.asarray(self.levels)
        match self.loss:
            case Log1p():
                return np.maximum(np.expm1(columns[:, 0]), 0.0)
            case Poisson() | Tweedie():
                return np.exp(columns[:, 0])
            case Quantile():
                return np.sort(columns, axis=1)[:, self.middle]
            case _:
                return columns[:, 0]


def level_shares(columns_BC: Float64Array) -> Float64Array:
    """Returns the probability of each of C + 1 ordered levels from the logits of exceeding each but the last."""
    above_BC = sigmoid(columns_BC)
    rows = len(above_BC)
    return -np.diff(np.hstack([np.ones((rows, 1)), above_BC, np.zeros((rows, 1))]), axis=1)


def sigmoid(logits: Float64Array) -> Float64Array:
    """1 / (1 + exp(-x)) without overflow."""
    decay = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, decay) / (1.0 + decay)


def column_slices(tasks: Sequence[Task]) -> list[slice]:
    """Returns where the columns of each task are among those of all."""
    ends = np.cumsum([task.columns for task in tasks]).tolist()
    return [slice(end - task.columns, end) for task, end in zip(tasks, ends, strict=True)]


def as_tasks(tasks: Sequence[str | Task]) -> tuple[Task, ...]:
    """Returns tasks; a name alone is that of a binary label."""
    return tuple(Task(task) if isinstance(task, str) else task for task in tasks)
