"""Pass 2 of preparation: figures of the labels, which models begin with, and their means in each split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.schema import WEIGHT_COLUMN, count_column, label_column
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.features.config import LabelConfig, Targets
from ziggurat.features.labels import MAX_LEVELS
from ziggurat.features.preparation.parts import StagedParts
from ziggurat.objectives.label_figures import LabelFigures, label_quantiles

SAMPLE_ROWS = 1 << 20
"""The most training rows whose labels quantiles are computed from."""

Rates = dict[str, dict[str, float]]


def fit_labels(
    targets: Targets,
    parts: StagedParts,
    assignments: Sequence[Assignment],
    files: Sequence[str],
    only_ones: str | None = None,
) -> tuple[Rates, dict[str, LabelFigures]]:
    """Returns the mean of each label in each split, and the figures of its training rows.

    Args:
        targets: the labels.
        parts: the staged parts.
        assignments: the split of each row, for each part.
        files: names of the raw files, for messages.
        only_ones: a label that may have no zeros among the training rows, as batches get them in training.

    Returns:
        Label -> split -> mean, which is the share of ones of a binary label and NaN for a split without rows; and
        label -> figures, in which each row counts by its weight.

    Raises:
        DataError: a label has one value only among the training rows, or an ordinal one too many levels.
    """
    rates: Rates = {}
    figures: dict[str, LabelFigures] = {}
    for label in targets.labels:
        column = _Label(label, targets, parts, assignments)
        rates[label.name] = column.means()
        column.check(", ".join(files), only_ones=label.name == only_ones)
        figures[label.name] = column.figures(", ".join(files))
    return rates, figures


class _Label:
    """The values of one label, read part by part."""

    def __init__(
        self, label: LabelConfig, targets: Targets, parts: StagedParts, assignments: Sequence[Assignment]
    ) -> None:
        self._label, self._targets, self._parts, self._assignments = label, targets, parts, assignments
        self._rows = sum((np.bincount(each, minlength=len(SPLITS)) for each in assignments), np.zeros(3, np.int64))

    def means(self) -> dict[str, float]:
        totals = np.zeros(len(SPLITS))
        for part, assignment in enumerate(self._assignments):
            values = self._values(part).astype(np.float64)
            totals += np.bincount(assignment, weights=values, minlength=len(SPLITS))
        with np.errstate(invalid="ignore"):
            return dict(zip(SPLITS, (totals / self._rows).tolist(), strict=True))

    def check(self, files: str, *, only_ones: bool) -> None:
        """Refuses a label from which nothing can be learnt."""
        least, most = np.inf, -np.inf
        ones = trials = 0
        for part, assignment in enumerate(self._assignments):
            values, training = self._values(part), assignment == TRAIN
            if self._label.trials is not None:
                training = training & (self._parts.target(part, count_column(self._label.name)) > 0)
            values = values[training]
            least, most = min(least, values.min(initial=np.inf)), max(most, values.max(initial=-np.inf))
            ones += int(np.count_nonzero(values == 1))
            trials += len(values)
        if least < most or (only_ones and least == 1):
            return
        name, rows = self._label.name, int(self._rows[TRAIN])
        if self._label.kind == "binary":
            raise DataError(
                f"{files}: label {name!r}: only one class in the training rows: {rows - ones:,} zeros, {ones:,} ones",
                "check the label's column and its at_least or equals, or choose another data.split",
            )
        found = "has no trials" if trials == 0 else f"is {least:g}"
        raise DataError(
            f"{files}: label {name!r}: {found} in all {rows:,} training rows: there is nothing to learn",
            "check the label's column, or choose another data.split",
        )

    def figures(self, files: str) -> LabelFigures:
        """Returns the figures of the training rows."""
        label = self._label
        if label.kind == "binary":
            values_mean = self._weighted_mean(lambda values: values)
            return LabelFigures(values_mean, float(np.sqrt(values_mean * (1 - values_mean))))
        mean = self._weighted_mean(lambda values: values)
        std = float(np.sqrt(self._weighted_mean(lambda values: (values - mean) ** 2)))
        log_mean, log_std = 0.0, 1.0
        if label.kind == "regression" and self._least() >= 0:
            log_mean = self._weighted_mean(np.log1p)
            log_std = float(np.sqrt(self._weighted_mean(lambda values: (np.log1p(values) - log_mean) ** 2)))
        levels = self._levels(files) if label.kind == "ordinal" else ()
        shares = tuple(self._weighted_mean(lambda values, level=level: values == level) for level in levels)
        sampled = label_quantiles(*self._sample()) if label.kind == "regression" else ()
        return LabelFigures(mean, std, log_mean, log_std, sampled, levels, shares, self._mean_trials())

    def _values(self, part: int) -> npt.NDArray[np.float32]:
        return self._parts.target(part, label_column(self._label.name))

    def _training(self, part: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns the values and the weights of a part's training rows."""
        training = self._assignments[part] == TRAIN
        weights = np.ones(int(np.count_nonzero(training)))
        if self._targets.weight is not None:
            weights = weights * self._parts.target(part, WEIGHT_COLUMN)[training]
        if self._label.trials is not None:
            weights = weights * self._parts.target(part, count_column(self._label.name))[training]
        return self._values(part)[training].astype(np.float64), weights

    def _weighted_mean(self, of: Callable[[npt.NDArray[np.float64]], npt.NDArray[Any]]) -> float:
        total = weight = 0.0
        for part in range(len(self._parts)):
            values, weights = self._training(part)
            total += float((of(values) * weights).sum())
            weight += float(weights.sum())
        return total / weight if weight > 0 else 0.0

    def _least(self) -> float:
        return min(float(self._training(part)[0].min(initial=np.inf)) for part in range(len(self._parts)))

    def _mean_trials(self) -> float:
        if self._label.trials is None:
            return 1.0
        total = rows = 0.0
        for part, assignment in enumerate(self._assignments):
            counts = self._parts.target(part, count_column(self._label.name))[assignment == TRAIN].astype(np.float64)
            total, rows = total + float(counts.sum()), rows + float(np.count_nonzero(counts))
        return total / rows if rows else 1.0

    def _levels(self, files: str) -> tuple[float, ...]:
        if self._label.levels is not None:
            return tuple(map(float, self._label.levels))
        found: set[float] = set()
        for part in range(len(self._parts)):
            found |= set(np.unique(self._values(part)).tolist())
            if len(found) > MAX_LEVELS:
                raise DataError(
                    f"{files}: label {self._label.name!r}: more than {MAX_LEVELS} levels, from {min(found):g} to "
                    f"{max(found):g}",
                    "set its kind to regression, or make a column of fewer levels",
                )
        return tuple(sorted(found))

    def _sample(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """Returns evenly spaced training rows: their values and weights."""
        step = max(1, -(-int(self._rows[TRAIN]) // SAMPLE_ROWS))
        found = [self._training(part) for part in range(len(self._parts))]
        values, weights = (np.concatenate([each[place][::step] for each in found]) for place in (0, 1))
        return values.astype(np.float32), weights
