"""The columns of a log, before and after encoding.

A :class:`RawSchema` states what a reader must deliver: column names with their value types. A :class:`Schema` states
what the encoders make of it, and what a :class:`~ziggurat.core.batch.Batch` contains: dense features, bags, sequences
and labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast


class ValueType(StrEnum):
    """How a raw cell is read. Ids are INTEGER or TEXT. The declared type decides, not the type in the file."""

    INTEGER = "integer"
    FLOAT = "float"
    TEXT = "text"
    TIME = "time"
    """A time in the column's format or a timestamp, read as seconds since 1970 UTC."""


MOST_NUMBERS = 4096
"""Most numbers of a vector: each is a dense feature with statistics of its own."""


@dataclass(frozen=True, slots=True)
class VectorElement:
    """One number of a column of vectors, which are lists of ``length`` numbers; ``index`` counts from 0."""

    column: str
    index: int
    length: int


@dataclass(frozen=True, slots=True)
class RawColumn:
    """One column that a reader must find in the logs.

    Attributes:
        name: name of the column in the file, or the path of a value inside one, such as ``geo.lat``.
        type: type of a cell, or of each of its values if ``many``.
        many: whether a cell holds several values (a bag or a sequence): a list, or text split by ``delimiter``.
        delimiter: separates the values of a text cell; ignored for list columns.
        required: whether a row with an empty cell is a bad row (labels, split keys); features may be missing.
        brackets: whether a text cell of several values is a list in brackets, such as ``[3, 1, 2]``; ignored for list
            columns.
        time_format: how the times of a TIME column are written: see :mod:`ziggurat.data.readers.cells.times`.
        vector: the number of a vector that the column is made of; its ``name`` is then free.
    """

    name: str
    type: ValueType
    many: bool = False
    delimiter: str = "|"
    required: bool = False
    brackets: bool = False
    time_format: str = "iso"
    vector: VectorElement | None = None

    @property
    def source(self) -> str:
        """The column of the file, or the path in it, that is read."""
        return self.name if self.vector is None else self.vector.column


@dataclass(frozen=True, slots=True)
class RawSchema:
    """The columns that a reader delivers, in this order."""

    columns: tuple[RawColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def __getitem__(self, name: str) -> RawColumn:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class Schema:
    """The encoded columns of a dataset, in the order in which a batch carries them.

    Attributes:
        dense: numeric features, float32.
        categorical: features with exactly one id per row.
        bags: features with any number of ids per row, which are pooled.
        sequences: features with an ordered list of ids per row.
        tables: feature name -> embedding table name, for every categorical, bag and sequence feature.
        rows: table name -> number of rows; every encoded id is in ``[0, rows)``.
        labels: label (task) names, float32.
        has_weight: whether a ``weight`` column is present.
        has_group: whether a ``group`` column (int64, for GAUC) is present.
        has_time: whether a ``time`` column (int64 or float64) is present.
        kinds: kinds of the labels that are not binary (0 or 1), by name.
        levels: the ordered values of each ordinal label.
        counted: the labels that have a weight column of their own, such as the impressions of a click rate.
    """

    dense: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    bags: tuple[str, ...] = ()
    sequences: tuple[str, ...] = ()
    tables: dict[str, str] = field(default_factory=dict[str, str])
    rows: dict[str, int] = field(default_factory=dict[str, int])
    labels: tuple[str, ...] = ()
    has_weight: bool = False
    has_group: bool = False
    has_time: bool = False
    kinds: dict[str, str] = field(default_factory=dict[str, str])
    levels: dict[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    counted: tuple[str, ...] = ()

    @property
    def pooled(self) -> tuple[str, ...]:
        """Keys of ``Batch.bags``: the single-id features first, then the bags."""
        return (*self.categorical, *self.bags)

    @property
    def sparse(self) -> tuple[str, ...]:
        """Every feature that is looked up in a table."""
        return (*self.categorical, *self.bags, *self.sequences)

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Schema:
        fields: dict[str, Any] = {
            k: tuple(cast("list[str]", v)) if isinstance(v, list) else v for k, v in values.items()
        }
        levels = cast("dict[str, list[float]]", values.get("levels", {}))
        fields["levels"] = {label: tuple(each) for label, each in levels.items()}
        return cls(**fields)


def label_column(label: str) -> str:
    """Returns the name of a label's column in the encoded dataset. The prefix keeps it apart from a feature's name."""
    return f"label:{label}"


def count_column(label: str) -> str:
    """Returns the name of the column of a label's own weights in the encoded dataset."""
    return f"count:{label}"


WEIGHT_COLUMN = "@weight"
GROUP_COLUMN = "@group"
TIME_COLUMN = "@time"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def duplicates(names: Iterable[str]) -> list[str]:
    """Returns the names that occur more than once, in order of their second occurrence."""
    seen: set[str] = set()
    twice: list[str] = []
    for name in names:
        if name in seen and name not in twice:
            twice.append(name)
        seen.add(name)
    return twice
