"""A set of rows with classes: kinds of columns told from the values, rows capped, splits by seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from sklearn.model_selection import train_test_split

from ziggurat.search.pipelines.pipeline import Kind
from ziggurat.search.pipelines.table import Table

ROWS = 2000
"""The most rows of a set; of longer ones as many are drawn, by class, with one seed for all."""
TEST_SHARE = 0.4
FEW = 5
"""A column of whole numbers with at most as many different ones is categorical."""
_DRAW = 20_261_127


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

    def load(self, folder: Path, data: Path | None) -> Table:
        """Returns the set, with at most :attr:`rows` rows.

        Raises:
            DataError: the package index cannot be reached, or holds another archive than the known one.
        """
        return labelled(self.name, self.read(folder, data), self.rows)


def split(table: Table, seed: int) -> tuple[Table, Table]:
    """Returns the training rows and :data:`TEST_SHARE` of the rows, drawn by class; equal seeds give equal rows."""
    kept, held = train_test_split(
        np.arange(len(table.labels)), test_size=TEST_SHARE, random_state=seed, stratify=table.labels
    )
    return table.rows(np.sort(kept)), table.rows(np.sort(held))


def labelled(name: str, frame: pl.DataFrame, rows: int) -> Table:
    """Returns a table of at most ``rows`` rows; the last column of ``frame`` is the label.

    Rows without a label are left out, and so are columns of one value.
    """
    label = frame.columns[-1]
    frame = frame.filter(pl.col(label).is_not_null())
    if len(frame) > rows:
        classes = frame[label].cast(pl.String).to_numpy()
        kept, _ = train_test_split(np.arange(len(frame)), train_size=rows, random_state=_DRAW, stratify=classes)
        frame = frame[np.sort(kept)]
    columns: list[pl.Series] = []
    kinds: dict[str, Kind] = {}
    for column in frame.columns[:-1]:
        if frame[column].n_unique() > 1:
            values, kinds[column] = typed(frame[column])
            columns.append(values)
    return Table.of(pl.DataFrame(columns), frame[label].cast(pl.String).to_list(), kinds, name)


def typed(values: pl.Series) -> tuple[pl.Series, Kind]:
    """Returns a column with its kind, told from the values.

    It is numeric if every value that is there is a number, unless they are whole and at most :data:`FEW` different
    ones: those are taken for codes.
    """
    if values.dtype.is_float():
        values = values.fill_nan(None)
    numbers = values.cast(pl.Float64, strict=False)
    if numbers.null_count() == values.null_count():
        present = numbers.drop_nulls()
        if present.n_unique() > FEW or not (present == present.round()).all():
            return numbers, "numeric"
    return values.cast(pl.String), "categorical"
