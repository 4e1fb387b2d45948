"""A table for the search: columns of numbers, categories and times, and a label of two or more classes.

Categories are numbered in the order of their texts, whole numbers by size. The numbers say which rows are equal, and
nothing of the labels; whatever is learnt of a column is learnt by the pipelines, from training rows alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from ziggurat.core.digests import digest_of_parts
from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.hashing import hash_integers, hash_text, to_buckets
from ziggurat.search.pipelines.pipeline import Kind

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_FEW = 2
_WHOLE = re.compile("-?[0-9]+").fullmatch
MISSING_CODE = -1.0


@dataclass(frozen=True, slots=True)
class Column:
    """One column of N rows.

    Attributes:
        name: its name.
        kind: numeric, categorical or time.
        values: (N,) numbers, or seconds since 1970, NaN for missing; or numbers of categories, -1 for missing.
        categories: the texts of the categories, in order; empty for other kinds.
        whole: whether the categories of the training rows are whole numbers, within 64 bits.
        missing_is_own: see :func:`~ziggurat.search.pipelines.pipeline.simplest`; so it is where a config is written
            whose one-hot and hashed categories look up an embedding table.
    """

    name: str
    kind: Kind
    values: Floats
    categories: tuple[str, ...] = ()
    whole: bool = False
    missing_is_own: bool = False

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """(N,) whether a value is missing."""
        return self.values == MISSING_CODE if self.kind == "categorical" else np.isnan(self.values)

    @property
    def has_missing(self) -> bool:
        return bool(self.missing.any())

    def buckets(self, count: int) -> Floats:
        """Returns (N,) the bucket of each category's hash, -1 for missing: those of ``hash`` in a config."""
        hashes = hash_text(pa.array(self.categories, pa.large_utf8()))
        numbers = {place: int(text) for place, text in enumerate(self.categories) if self.whole and _WHOLE(text)}
        hashes[list(numbers)] = hash_integers(np.array(list(numbers.values()), np.int64))
        return np.append(to_buckets(hashes, count).astype(np.float64), MISSING_CODE)[self.values.astype(np.int64)]

    def digest(self) -> str:
        """Returns the checksum of the column's content, without its name."""
        texts = "\0".join(self.categories).encode()
        return digest_of_parts(
            [f"{self.kind}{' whole' * self.whole}".encode(), np.ascontiguousarray(self.values), texts]
        )

    def rows(self, chosen: Ints) -> Column:
        """Returns the column of some rows."""
        return replace(self, values=self.values[chosen])


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of N rows and a label.

    Attributes:
        columns: the columns, with distinct names.
        labels: (N,) the number of each row's class, from 0.
        classes: the texts of the classes.
        name: what messages call the table.
    """

    columns: tuple[Column, ...]
    labels: Ints
    classes: tuple[str, ...]
    name: str = field(default="table")

    def __post_init__(self) -> None:
        names = [each.name for each in self.columns]
        if len(set(names)) < len(names) or not names:
            raise ConfigError(f"{self.name}: a table needs columns of distinct names, received {shorten(names)}")
        wrong = [each.name for each in self.columns if each.values.shape != self.labels.shape]
        if wrong:
            raise ConfigError(f"{self.name}: column {wrong[0]!r} does not have the {len(self.labels):,} rows of labels")
        if len(self.classes) < _FEW:
            raise ConfigError(
                f"{self.name}: the label has {len(self.classes)} classes", "give a label of two classes or more"
            )

    @classmethod
    def of(
        cls,
        columns: pl.DataFrame | Mapping[str, Any],
        labels: Any,
        kinds: Mapping[str, Kind] | None = None,
        name: str = "table",
    ) -> Table:
        """Returns a table of a polars frame, or of arrays by name.

        Args:
            columns: the columns, without the label.
            labels: one label for each row; none may be missing.
            kinds: kinds by name; default: times are times, numbers numeric, and all else categorical.
            name: what messages call the table.

        Raises:
            ConfigError: a label is missing, a kind does not fit, or there is one class alone.
        """
        frame = columns if isinstance(columns, pl.DataFrame) else pl.DataFrame(dict(columns))
        codes, classes, _ = codes_of(_series(labels))
        if (codes < 0).any():
            raise ConfigError(f"{name}: {int((codes < 0).sum()):,} labels are missing", "leave those rows out")
        given: dict[str, Kind] = dict(kinds or {})
        unknown = set(given) - set(frame.columns)
        if unknown:
            raise ConfigError(f"{name}: kinds names {sorted(unknown)[0]!r}, which is no column", shorten(frame.columns))
        made = tuple(column_of(each, given.get(each.name) or kind_of(each), name) for each in frame.get_columns())
        return cls(made, codes.astype(np.int64), classes, name)

    def column(self, name: str) -> Column:
        """Returns a column by its name."""
        return next(each for each in self.columns if each.name == name)

    def rows(self, chosen: Ints) -> Table:
        """Returns the table of some rows; classes stay."""
        return Table(tuple(each.rows(chosen) for each in self.columns), self.labels[chosen], self.classes, self.name)

    def digest(self) -> str:
        """Returns the checksum of everything in the table."""
        parts = [f"{each.name}\0{each.digest()}".encode() for each in self.columns]
        return digest_of_parts([*parts, self.labels, "\0".join(self.classes).encode()])


def _series(values: Any) -> pl.Series:
    """Returns a series of any array; objects are taken as texts, None as missing."""
    array = np.asarray(values)
    if array.dtype == object:
        return pl.Series("label", [None if each is None else str(each) for each in array.tolist()], pl.String)
    return pl.Series("label", array)


def kind_of(series: pl.Series) -> Kind:
    """Returns the kind that a column's type suggests."""
    if series.dtype.is_temporal():
        return "time"
    return "numeric" if series.dtype.is_numeric() else "categorical"


def column_of(series: pl.Series, kind: Kind, where: str) -> Column:
    """Returns a column of a polars series.

    Raises:
        ConfigError: values are no numbers or no times.
    """
    try:
        if kind == "categorical":
            codes, categories, whole = codes_of(series)
            return Column(series.name, kind, codes, categories, whole)
        if kind == "time" and series.dtype.is_temporal():
            series = series.cast(pl.Datetime("us")).dt.epoch("us").cast(pl.Float64) / 1e6
        values = series.cast(pl.Float64).fill_null(float("nan")).to_numpy()
    except pl.exceptions.PolarsError as error:
        raise ConfigError(
            f"{where}: column {series.name!r} of type {series.dtype} is not {kind}: {shorten(str(error))}",
            f"make it categorical: kinds={{{series.name!r}: 'categorical'}}"
            if kind != "categorical"
            else "leave it out",
        ) from None
    values = np.where(np.isfinite(values), values, np.nan)
    return Column(series.name, kind, np.ascontiguousarray(values, np.float64))


def codes_of(series: pl.Series) -> tuple[Floats, tuple[str, ...], bool]:
    """Returns the number of each value in order, -1 for missing; their texts; whether all are whole numbers.

    The text of a value does not depend on the others: that of 4.0 is 4.
    """
    texts = series.cast(pl.String)
    whole = series.dtype.is_integer() and series.cast(pl.Int64, strict=False).null_count() == series.null_count()
    if series.dtype.is_float():
        series = series.fill_nan(None)
        is_whole = (series == series.round()) & (series.abs() < 2**53)
        shorter = series.cast(pl.Int64, strict=False).cast(pl.String)
        texts = shorter.zip_with(is_whole.fill_null(value=False), series.cast(pl.String))
        whole = bool(is_whole.drop_nulls().all())
    categories: list[str] = texts.drop_nulls().unique().sort().to_list()
    if whole:
        categories.sort(key=int)
    places = texts.replace_strict(categories, list(range(len(categories))), default=None, return_dtype=pl.Float64)
    return places.fill_null(MISSING_CODE).to_numpy().astype(np.float64), tuple(categories), whole
