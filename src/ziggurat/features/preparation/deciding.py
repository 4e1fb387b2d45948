"""Finds features that alone tell a binary label: in every training row it follows from the feature's value.

A number does if the values of the rows with 0 and of those with 1 lie apart, as a revenue that is 0 exactly where
nothing was bought. An id feature does if all rows with one value have one label, as a status. A feature is followed
only until a row contradicts, so that usual ones cost nothing after the first part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import hash_array, to_buckets
from ziggurat.core.schema import label_column
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.features.config import CategoricalFeature
from ziggurat.features.preparation.parts import StagedParts

LEAST_ROWS = 20
"""Fewer rows with 0, or with 1, decide nothing: they may lie apart by chance."""
LEAST_REPEATS = 20
"""Values of an id feature that occur less often on average decide nothing: what occurs once has one label anyway."""
_BUCKETS = 1 << 20
Classes = Sequence[npt.NDArray[np.bool_]]
"""The rows of a part with the label 0, and those with 1."""


class NumberSeparation:
    """Whether a number tells a label."""

    def __init__(self) -> None:
        self._rows, self._missing = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self._low, self._high = np.full(2, np.inf), np.full(2, -np.inf)

    def add(self, values_B: npt.NDArray[np.float64], classes: Classes) -> None:
        """Counts rows; NaN is a missing value."""
        for label, chosen_B in enumerate(classes):
            values = values_B[chosen_B]
            present = values[~np.isnan(values)]
            self._rows[label] += len(values)
            self._missing[label] += len(values) - len(present)
            if len(present):
                self._low[label] = min(self._low[label], present.min())
                self._high[label] = max(self._high[label], present.max())

    @property
    def may_tell(self) -> bool:
        """Whether no row contradicts."""
        apart = self._high[0] < self._low[1] or self._high[1] < self._low[0]
        return bool(apart and not self._missing.all())

    @property
    def tells(self) -> bool:
        return self.may_tell and bool((self._rows >= LEAST_ROWS).all())


class ValueSeparation:
    """Whether the values of an id feature tell a label."""

    def __init__(self) -> None:
        self._rows = np.zeros(2, np.int64)
        self._seen = np.zeros((2, _BUCKETS + 1), np.bool_)

    def add(self, buckets_B: npt.NDArray[np.int64], classes: Classes) -> None:
        """Counts rows by the bucket of their value; the last bucket is that of missing values."""
        for label, chosen_B in enumerate(classes):
            self._rows[label] += np.count_nonzero(chosen_B)
            self._seen[label, buckets_B[chosen_B]] = True

    @property
    def may_tell(self) -> bool:
        """Whether no row contradicts."""
        return not (self._seen[0] & self._seen[1]).any()

    @property
    def tells(self) -> bool:
        enough = (self._rows >= LEAST_ROWS).all() and self._rows.sum() >= LEAST_REPEATS * self._seen.sum()
        return self.may_tell and bool(enough)


def numbers_that_tell(
    columns: Iterable[str], labels: Sequence[str], parts: StagedParts, assignments: Sequence[Assignment]
) -> dict[str, tuple[str, ...]]:
    """Returns raw numeric column -> the binary labels that it tells; columns that tell none are left out.

    Args:
        columns: the columns.
        labels: the names of the labels.
        parts: the staged parts.
        assignments: the split of each row, for each part.
    """
    return _tell(NumberSeparation, columns, labels, parts, assignments, parts.numbers)


def values_that_tell(
    features: Iterable[CategoricalFeature],
    labels: Sequence[str],
    parts: StagedParts,
    assignments: Sequence[Assignment],
) -> dict[str, tuple[str, ...]]:
    """Returns single-valued id feature -> the binary labels that it tells; as :func:`numbers_that_tell`."""
    columns = {feature.name: feature.source_column for feature in features}

    def buckets(part: int, name: str) -> npt.NDArray[np.int64]:
        of_values = to_buckets(hash_array(parts.values(part, columns[name])), _BUCKETS).astype(np.int64)
        return np.append(of_values, _BUCKETS)[parts.codes(part, columns[name]).codes]

    return _tell(ValueSeparation, columns, labels, parts, assignments, buckets)


def _tell(
    kind: Callable[[], NumberSeparation | ValueSeparation],
    names: Iterable[str],
    labels: Sequence[str],
    parts: StagedParts,
    assignments: Sequence[Assignment],
    values_of: Callable[[int, str], npt.NDArray[Any]],
) -> dict[str, tuple[str, ...]]:
    """Returns name -> the labels that it tells; ``values_of(part, name)`` is read until a row contradicts."""
    open_ = {(name, label): kind() for name in names for label in labels}
    for part, assignment in enumerate(assignments):
        classes = _classes({label for _, label in open_}, parts, part, assignment)
        values = {name: values_of(part, name) for name in {name for name, _ in open_}}
        for (name, label), separation in list(open_.items()):
            separation.add(values[name], classes[label])
            if not separation.may_tell:
                del open_[name, label]
    return _by_feature(open_)


def _classes(
    labels: Iterable[str], parts: StagedParts, part: int, assignment: Assignment
) -> dict[str, list[npt.NDArray[np.bool_]]]:
    training_B = assignment == TRAIN
    targets: dict[str, npt.NDArray[Any]] = {label: parts.target(part, label_column(label)) for label in labels}
    return {label: [training_B & (values_B == each) for each in (0, 1)] for label, values_B in targets.items()}


def _by_feature(
    found: Mapping[tuple[str, str], NumberSeparation | ValueSeparation],
) -> dict[str, tuple[str, ...]]:
    told: dict[str, tuple[str, ...]] = {}
    for (name, label), separation in found.items():
        if separation.tells:
            told[name] = (*told.get(name, ()), label)
    return told
