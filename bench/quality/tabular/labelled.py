"""A table with a class for each row: kinds of columns told from the values, rows capped, splits by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.model_selection import train_test_split

Kind = Literal["numeric", "categorical"]

ROWS = 2000
"""The most rows of a set; of longer ones as many are drawn, by class, with one seed for all benchmarks."""
TEST_SHARE = 0.3
FEW = 5
"""A column of whole numbers with at most as many different ones is categorical."""
_DRAW = 20_261_127
_LABEL = "label"


@dataclass(frozen=True, slots=True)
class TabularSet:
    """A set by name.

    Attributes:
        name: its name in the benchmark.
        source: where it comes from.
        read: returns all rows, given a folder for what is fetched and the folder of ``--data``; the last column is
            the label.
        given: whether ``read`` needs ``--data``.
        rows: the most rows that are kept.
    """

    name: str
    source: str
    read: Callable[[Path, Path | None], pl.DataFrame]
    given: bool = False
    rows: int = ROWS

    def load(self, folder: Path, data: Path | None) -> LabelledTable:
        """Returns the set, with at most :attr:`rows` rows.

        Raises:
            DataError: the package index cannot be reached, or holds another archive than the known one.
        """
        return labelled(self.name, self.read(folder, data), self.rows)


@dataclass(frozen=True, slots=True)
class LabelledTable:
    """Columns, and a class for each row.

    Attributes:
        name: of the set.
        columns: without the label; numeric ones are Float64 with NaN where a value is missing, the others are String
            with null there.
        kinds: column -> its kind.
        labels_N: classes from 0 on, int64.
    """

    name: str
    columns: pl.DataFrame
    kinds: Mapping[str, Kind]
    labels_N: npt.NDArray[np.int64]

    @property
    def classes(self) -> int:
        return int(self.labels_N.max()) + 1

    def split(self, seed: int) -> tuple[LabelledTable, LabelledTable]:
        """Returns the training rows and :data:`TEST_SHARE` of the rows, drawn by class; equal seeds give equal rows."""
        kept, held = train_test_split(
            np.arange(len(self.labels_N)), test_size=TEST_SHARE, random_state=seed, stratify=self.labels_N
        )
        return self._take(np.sort(kept)), self._take(np.sort(held))

    def _take(self, rows: npt.NDArray[np.int64]) -> LabelledTable:
        return LabelledTable(self.name, self.columns[rows], self.kinds, self.labels_N[rows])


def labelled(name: str, frame: pl.DataFrame, rows: int) -> LabelledTable:
    """Returns a table of at most ``rows`` rows; the last column of ``frame`` is the label.

    Rows without a label and columns of one value are left out. Classes are numbered in the order of their names.
    """
    label = frame.columns[-1]
    frame = frame.filter(pl.col(label).is_not_null())
    names = sorted(frame[label].cast(pl.String).unique().to_list())
    labels = frame[label].cast(pl.String).replace_strict(names, list(range(len(names))), return_dtype=pl.Int64)
    classes = labels.to_numpy()
    if len(classes) > rows:
        kept, _ = train_test_split(np.arange(len(classes)), train_size=rows, random_state=_DRAW, stratify=classes)
        frame, classes = frame[np.sort(kept)], classes[np.sort(kept)]
    columns: dict[str, pl.Series] = {}
    kinds: dict[str, Kind] = {}
    for column in frame.columns[:-1]:
        if frame[column].n_unique() > 1:
            columns[column], kinds[column] = typed(frame[column])
    return LabelledTable(name, pl.DataFrame(columns), kinds, classes)


def typed(values: pl.Series) -> tuple[pl.Series, Kind]:
    """Returns a column with its kind, told from the values.

    It is numeric if every value that is there is a number, unless they are whole and at most :data:`FEW` different
    ones: those are taken for codes.
    """
    if values.dtype.is_float():
        values = values.fill_nan(None)
    numbers = values.cast(pl.Float64, strict=False).fill_nan(None)
    if numbers.null_count() == values.null_count():
        present = numbers.drop_nulls()
        if present.n_unique() > FEW or not (present == present.round()).all():
            return numbers.fill_null(float("nan")), "numeric"
    return values.cast(pl.String), "categorical"
