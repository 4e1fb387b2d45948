"""Encodes the rows of JSON requests value by value, without a table.

To read and encode a table takes milliseconds, for one row nearly as long as for a hundred. Most features need none: a
number goes through its chain, and an id is remembered (:mod:`ziggurat.serving.model.remembered_ids`). The features that
are made of several values, or of times, are still encoded as a table, and so is every request that holds a value of an
unusual type, which the table names if it is wrong. The result is that of a table to the bit.

Shape legend: B rows, F dense features.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from ziggurat.core.schema import ValueType
from ziggurat.features.config import BagFeature, CategoricalFeature, FeatureConfig, NumericFeature, SequenceFeature
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.tables import resolve_tables
from ziggurat.features.transform import Transform
from ziggurat.serving.model.remembered_ids import DROPPED, REFUSED, IdFeature, RememberedIds
from ziggurat.serving.tables.inputs import Ids

Record = Mapping[str, Any]
MOST_REMEMBERED = 1 << 17
"""Values whose ids are remembered, of all features of a model together; twice as many at times."""
_EXACT = 2**53
"""Whole numbers below it are exact as floats."""
_TEXTS = frozenset({str, type(None)})
_NUMBERS = frozenset({float, int, type(None)})
_WHOLE = frozenset({int, type(None)})


@dataclass(frozen=True, slots=True)
class _Number:
    """A feature whose numbers go through a chain.

    Attributes:
        name, column: the feature, and the column of the rows.
        chain: its chain.
        types: the types of the numbers that are taken.
    """

    name: str
    column: str
    chain: NumericChain
    types: frozenset[type]


@dataclass(frozen=True, slots=True)
class _IdsOf:
    """A feature whose ids are remembered.

    Attributes:
        name, column: the feature, and the column of the rows.
        ids: the ids of its values.
        many: whether a row has a list of them.
        first, last: how many of the first or of the last of a list are looked up; None: all.
    """

    name: str
    column: str
    ids: RememberedIds
    many: bool
    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class PlainlyEncoded:
    """What rows were encoded to.

    Attributes:
        numbers: dense feature -> its numbers (B,).
        ids: feature -> its ids.
    """

    numbers: dict[str, npt.NDArray[np.float32]]
    ids: dict[str, Ids]


class PlainFeatures:
    """Features of which rows are encoded value by value.

    Args:
        transform: the transform of the model.
    """

    def __init__(self, transform: Transform) -> None:
        schema = transform.raw_schema(labelled=False)
        types = {column.name: column.type for column in schema.columns if column.vector is None}
        codes = {name: table.encoder.codes for name, table in resolve_tables(transform.features).items()}
        self._numbers: dict[str, _Number] = {}
        of_ids: list[IdFeature] = []
        for feature in transform.features:
            if not isinstance(feature, NumericFeature | IdFeature):
                continue
            column = feature.source_column
            if column not in types or "." in column:
                continue
            if not isinstance(feature, NumericFeature):
                if codes[feature.table_name] == 1:
                    of_ids.append(feature)
            elif feature.name in transform.chains and types[column] in (ValueType.INTEGER, ValueType.FLOAT):
                taken = _WHOLE if types[column] is ValueType.INTEGER else _NUMBERS
                self._numbers[feature.name] = _Number(feature.name, column, transform.chains[feature.name], taken)
        most = max(1, MOST_REMEMBERED // max(1, len(of_ids)))
        self._ids = {each.name: _ids_of(transform, each, most) for each in of_ids}

    @classmethod
    def shared(cls, transform: Transform) -> PlainFeatures:
        """Returns those of a transform, made once: all versions of a model remember the same ids."""
        found = _MADE.get(transform)
        if found is None:
            found = _MADE[transform] = cls(transform)
        return found

    @property
    def names(self) -> frozenset[str]:
        """The features."""
        return frozenset((*self._numbers, *self._ids))

    def of(self, features: Sequence[FeatureConfig]) -> PlainSide:
        """Returns those of them that are among ``features``."""
        names = [feature.name for feature in features]
        numbers = tuple(self._numbers[name] for name in names if name in self._numbers)
        return PlainSide(numbers, tuple(self._ids[name] for name in names if name in self._ids))


_MADE: WeakKeyDictionary[Transform, PlainFeatures] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class PlainColumns:
    """The values of rows by column, all of usual types, those of a column the same.

    Attributes:
        values: column -> its values; of a column of lists those of all rows, one after another.
        lengths: column of lists -> how many values each row has.
    """

    values: dict[str, list[Any]]
    lengths: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class PlainSide:
    """Features of the rows of one side of a request, each encoded value by value."""

    numbers: tuple[_Number, ...]
    ids: tuple[_IdsOf, ...]

    def columns(self, rows: Sequence[Record]) -> PlainColumns | None:
        """Returns the values of rows; None if a column is missing, or has values of an unusual type or of two."""
        values: dict[str, list[Any]] = {}
        lengths: dict[str, list[int]] = {}
        try:
            for number in self.numbers:
                found = values[number.column] = [row[number.column] for row in rows]
                if not number.types.issuperset(map(type, found)):
                    return None
            for feature in self.ids:
                column = feature.column
                found = [row[column] for row in rows]
                if feature.many:
                    if set(map(type, found)) != {list}:
                        return None
                    lengths[column] = list(map(len, found))
                    found = list(itertools.chain.from_iterable(found))
                values[column] = found
                kinds = set(map(type, found))
                if not (kinds <= _TEXTS or kinds <= _WHOLE):
                    return None
        except KeyError:
            return None
        return PlainColumns(values, lengths)

    def encode(self, given: Sequence[PlainColumns]) -> PlainlyEncoded | None:
        """Returns the encoded rows of several requests; None if a value is to be read as a table."""
        numbers: dict[str, npt.NDArray[np.float32]] = {}
        ids: dict[str, Ids] = {}
        for number in self.numbers:
            values = _joined([each.values[number.column] for each in given])
            try:
                floats = np.array(values, np.float64)
            except OverflowError:  # a whole number beyond all floats
                return None
            if not (np.abs(floats) < _EXACT).all() and not all(map(_is_exact, values)):
                return None
            found = number.chain.apply(floats)
            if found.dtype == np.float32:
                numbers[number.name] = found.astype(np.float32, copy=False)
            else:
                ids[number.name] = Ids(found.astype(np.int64, copy=False), None)
        for feature in self.ids:
            of_values = feature.ids.of(_joined([each.values[feature.column] for each in given]))
            if REFUSED in of_values:
                return None
            if feature.many:
                ids[feature.name] = _lists(
                    feature, of_values, _joined([each.lengths[feature.column] for each in given])
                )
            else:
                ids[feature.name] = Ids(np.array(of_values, np.int64), None)
        return PlainlyEncoded(numbers, ids)


def _joined(parts: Sequence[list[Any]]) -> list[Any]:
    return parts[0] if len(parts) == 1 else list(itertools.chain.from_iterable(parts))


def _ids_of(transform: Transform, feature: IdFeature, most: int) -> _IdsOf:
    first = feature.max_length if isinstance(feature, BagFeature) else None
    last = feature.last if isinstance(feature, SequenceFeature) else None
    remembered = RememberedIds(transform, feature, most)
    many = not isinstance(feature, CategoricalFeature)
    return _IdsOf(feature.name, feature.source_column, remembered, many, first, last)


def _is_exact(value: float | None) -> bool:
    """Whether a number is the same as a float; missing is."""
    return value is None or (isinstance(value, float) and np.isfinite(value)) or abs(value) < _EXACT


def _lists(feature: _IdsOf, found: list[int], lengths: list[int]) -> Ids:
    """Returns the ids of lists; missing values are left out before a list is cut."""
    first, last = feature.first, feature.last
    if DROPPED in found or (first is not None and max(lengths) > first) or (last is not None and max(lengths) > last):
        kept: list[int] = []
        cut: list[int] = []
        start = 0
        for length in lengths:
            ids = [each for each in found[start : start + length] if each != DROPPED]
            start += length
            ids = ids if first is None else ids[:first]
            ids = ids if last is None else ids[-last:]
            kept += ids
            cut.append(len(ids))
        found, lengths = kept, cut
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return Ids(np.array(found, np.int64), offsets)
