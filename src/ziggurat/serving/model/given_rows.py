"""The raw rows of requests, and how those of several requests become one table.

Reading and encoding a table costs about the same for one row as for a hundred, so the rows of requests that wait
together are joined first. They are joined only where their columns have the same Arrow types: one column of whole
numbers and text would be read by other rules than either.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa

from ziggurat.core.schema import RawColumn, RawSchema
from ziggurat.data.readers.frame.columns import FAILURES
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.features.transform import Transform
from ziggurat.serving.model.plain_rows import PlainColumns, PlainFeatures, PlainSide, Record

Rows = pa.Table | Sequence[Record] | Mapping[str, Any]
"""A table, a list of objects, or columns by name."""
Arrays = dict[str, pa.Array]
_NULL = pa.null()


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Features that are encoded together: all of a model, those of a context, or those of candidates.

    Attributes:
        transform: encodes them.
        schema: the raw columns that it reads.
        columns: the first name of each -> one of the columns that are read from it.
        names: the names of columns that are no path into another.
        paths: the others.
        plain: those of the features that are encoded value by value where values have the usual types.
        rest: the other features; None if there are none.
    """

    transform: Transform
    schema: RawSchema
    columns: dict[str, RawColumn]
    names: frozenset[str]
    paths: tuple[str, ...]
    plain: PlainSide
    rest: Side | None

    @classmethod
    def of(cls, transform: Transform, plain: PlainFeatures | None = None) -> Side:
        """Returns the side of a transform; the features among ``plain`` are encoded value by value."""
        schema = transform.raw_schema(labelled=False)
        known = frozenset[str]() if plain is None else plain.names
        others = [feature.name for feature in transform.features if feature.name not in known]
        rest = cls.of(transform.restricted(others)) if plain is not None and others else None
        columns: dict[str, RawColumn] = {}
        for column in schema.columns:
            columns.setdefault(column.source, column)
        paths = tuple(name for name in columns if "." in name)
        side = PlainSide((), ()) if plain is None else plain.of(transform.features)
        return cls(transform, schema, columns, frozenset(columns).difference(paths), paths, side, rest)


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of a request.

    Attributes:
        side: the features that are made of them.
        rows: the rows; one row if they are a context.
        place: the field of the request that holds them: ``rows``, ``context`` or ``candidates``.
        plain: whether each value of the rows is a string, number, truth value, None, or a list of those.
        values: the values of the features that are encoded value by value; None if they are to be read as a table.
    """

    side: Side
    rows: Rows
    place: str
    plain: bool = False
    values: PlainColumns | None = None

    @classmethod
    def of(cls, side: Side, rows: Rows, place: str, *, plain: bool) -> GivenRows:
        """Returns rows; plain ones with their values, where the side's features are encoded value by value."""
        values = None
        if plain and isinstance(rows, Sequence) and (side.plain.numbers or side.plain.ids):
            values = side.plain.columns(cast("Sequence[Record]", rows))
        return cls(side, rows, place, plain, values)

    @property
    def is_complete(self) -> bool:
        """Whether it is known that no column is missing."""
        return self.values is not None and self.side.rest is None

    def by_value(self, most_ids: int) -> bool:
        """Whether they can be encoded value by value, with at most ``most_ids`` values in the lists of a row."""
        if self.values is None:
            return False
        lengths = self.values.lengths.values()
        return sum(map(sum, lengths)) <= most_ids or max(map(sum, zip(*lengths, strict=True))) <= most_ids

    def arrays(self) -> Arrays:
        """Returns the columns.

        Raises:
            DataError: no table can be made of them.
        """
        if self.plain and isinstance(self.rows, Sequence) and not self.side.paths:
            try:
                return {name: pa.array([row[name] for row in self.rows]) for name in self.side.columns}
            except (*FAILURES, OverflowError):
                pass  # named below
        table = to_arrow(cast("Any", self.rows), self.side.schema)
        return {name: _one(column) for name, column in zip(table.column_names, table.columns, strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """What rows have in common that can be joined.

    Attributes:
        side, place: as of :class:`GivenRows`.
        types: the Arrow type of each column; null if all its values are missing, and a list of null if all its lists
            are empty.
    """

    side: Side
    place: str
    types: Mapping[str, pa.DataType]

    def common(self, other: Kinds) -> Kinds | None:
        """Returns the kinds of both together; None if they cannot be joined."""
        if self.side is not other.side or self.place != other.place or self.types.keys() != other.types.keys():
            return None
        types: dict[str, pa.DataType] = {}
        for name, mine in self.types.items():
            both = _common(mine, other.types[name])
            if both is None:
                return None
            types[name] = both
        return Kinds(self.side, self.place, types)


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Rows of one side and one or several requests.

    Attributes:
        kinds: what they have in common.
        parts: the columns of each request, in the order of the requests.
    """

    kinds: Kinds
    parts: list[Arrays]

    @classmethod
    def of(cls, given: GivenRows) -> JoinedRows:
        """Returns the rows of one request.

        Raises:
            DataError: no table can be made of them.
        """
        arrays = given.arrays()
        types = {name: each.type for name, each in arrays.items()}
        return cls(Kinds(given.side, given.place, types), [arrays])

    @classmethod
    def joined(cls, rows: Sequence[JoinedRows]) -> JoinedRows | None:
        """Returns the rows of several requests; None if their kinds have nothing in common."""
        if len(rows) == 1:
            return rows[0]
        kinds: Kinds | None = rows[0].kinds
        for each in rows[1:]:
            kinds = kinds.common(each.kinds)
            if kinds is None:
                return None
        return cls(kinds, [part for each in rows for part in each.parts])

    def table(self) -> pa.Table:
        """Returns the rows as one table."""
        if len(self.parts) == 1:
            return pa.table(self.parts[0])
        columns: Arrays = {}
        for name, kind in self.kinds.types.items():
            pieces = [part[name] for part in self.parts]
            columns[name] = pa.concat_arrays([each if each.type == kind else each.cast(kind) for each in pieces])
        return pa.table(columns)

    def owner(self, row: int) -> int:
        """Returns which of the requests has a row of the table."""
        ends = itertools.accumulate(len(next(iter(part.values()))) for part in self.parts)
        return next(number for number, end in enumerate(ends) if row < end)


def _common(mine: pa.DataType, theirs: pa.DataType) -> pa.DataType | None:
    """Returns the type of the values of two columns; None if they have two."""
    if mine == theirs or theirs == _NULL:
        return mine
    if mine == _NULL:
        return theirs
    if pa.types.is_list(mine) and pa.types.is_list(theirs) and _NULL in (mine.value_type, theirs.value_type):
        return theirs if mine.value_type == _NULL else mine
    return None


def _one(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
