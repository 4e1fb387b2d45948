"""Tells ids from quantities among whole numbers by the label: an id's rate differs from its neighbours' without order.

With n_v rows of value v, whose labels have the mean m_v, and the variance s² of all labels, the differences between
values are D = sum n_v (m_v - m)² / s². Chance alone gives one less than there are values. What exceeds that is S. Of
it, neighbouring values share C = sum sqrt(n_v n_v+1) (m_v - m) (m_v+1 - m) / s², of which chance gives 0. C / S is near
1 where the mean follows the order of the values, and near 0 where the order says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ziggurat.data.inference.label_kinds import InferredLabel

Floats = npt.NDArray[np.float64]

_EVIDENT = 6.0
"""Deviations of chance from which on differences are evident."""
_ORDERED, _UNORDERED = 0.6, 0.25
"""Shares of the differences that neighbours share: from the one on the order tells, up to the other it does not."""
_FEWEST = 12
"""With fewer values their order may agree with the label by chance."""
_FEWEST_ROWS = 3
"""With fewer rows a value, differences without order are those of rows that were written more than once."""


@dataclass(frozen=True, slots=True)
class LabelOrder:
    """How the label's mean depends on the values of a column.

    Attributes:
        rows: rows per different value.
        differences: by how many deviations of chance the means of the values differ.
        ordered: by how many deviations of chance those of neighbours agree.
        shared: share of the differences that neighbours share; 0 if there are no differences.
    """

    rows: float = 0.0
    differences: float = 0.0
    ordered: float = 0.0
    shared: float = 0.0

    @property
    def quantity(self) -> bool | None:
        """True if the label follows the order of the values, False if it differs between them without order."""
        if self.differences >= _EVIDENT and self.shared <= _UNORDERED:
            return False if self.rows >= _FEWEST_ROWS else None
        if self.ordered >= _EVIDENT and (self.differences < _EVIDENT or self.shared >= _ORDERED):
            return True
        return None

    @property
    def mixed(self) -> bool:
        """Whether the values' means differ evidently, both by their order and apart from it."""
        return self.differences >= _EVIDENT and self.quantity is None


def label_order(values: npt.NDArray[Any], labels: Floats) -> LabelOrder:
    """Returns how the labels depend on the values.

    Args:
        values: whole numbers, one a row.
        labels: the label of each of these rows, finite.
    """
    spread = float(labels.var()) if len(labels) else 0.0
    distinct, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(distinct) < _FEWEST or spread <= 0:
        return LabelOrder()
    deviations = np.bincount(codes, labels - labels.mean()) / counts
    chance = len(distinct) - 1
    excess = float((counts * deviations**2).sum() / spread) - chance
    # The variance of a sum of squares: that of chi-square, and more where labels have long tails and values few rows.
    kurtosis = float(((labels - labels.mean()) ** 4).mean() / spread**2) - 3
    noise = float(np.sqrt(max(2.0 * chance + kurtosis * float((1 / counts).sum()), 1.0)))
    shared = float((np.sqrt(counts[:-1] * counts[1:]) * deviations[:-1] * deviations[1:]).sum() / spread)
    return LabelOrder(
        rows=len(labels) / len(distinct),
        differences=excess / noise,
        ordered=shared / float(np.sqrt(chance)),
        shared=shared / excess if excess > 0 else 0.0,
    )


def label_numbers(label: InferredLabel, frame: pl.DataFrame) -> Floats | None:
    """Returns the label of each row, NaN where there is none; None for a label of several columns."""
    if label.trials is not None:
        return None
    cells = frame[label.profile.name]
    if isinstance(label.equals, str):
        texts = cells.cast(pl.String).str.strip_chars()
        return _floats((texts == label.equals.strip()).cast(pl.Float64))
    numbers = _floats(cells.cast(pl.Float64, strict=False))
    if label.equals is not None:
        return np.where(np.isfinite(numbers), numbers == label.equals, np.nan)
    if label.at_least is not None:
        return np.where(np.isfinite(numbers), numbers >= label.at_least, np.nan)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _floats(cells: pl.Series) -> Floats:
    return cells.fill_null(float("nan")).to_numpy()
