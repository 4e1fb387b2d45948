"""The raw rows of requests, and how those of several requests become one table.

Reading and encoding a table costs about the same for one row as for a hundred, so the rows of requests that wait
together are joined first. They are joined only where that cannot change a value: a column that holds whole numbers in
one request and text in another would be read by other rules if both were one.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, cast

import pyarrow as pa

from ziggurat.core.schema import RawColumn, RawSchema
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.features.transform import Transform

Record = Mapping[str, Any]
Rows = pa.Table | Sequence[Record] | Mapping[str, Any]
"""A table, a list of objects, or columns by name."""

_SCALARS = frozenset({str, int, float, bool})
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """Features that are encoded together: all of a model, those of a context, or those of candidates.

    Attributes:
        transform: encodes them.
        schema: the raw columns that it reads.
        columns: the first name of each -> one of the columns that are read from it.
    """

    transform: Transform
    schema: RawSchema
    columns: dict[str, RawColumn]

    @classmethod
    def of(cls, transform: Transform) -> Side:
        """Returns the side of a transform."""
        schema = transform.raw_schema(labelled=False)
        columns: dict[str, RawColumn] = {}
        for column in schema.columns:
            columns.setdefault(column.source, column)
        return cls(transform, schema, columns)


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows of a request.

    Attributes:
        side: the features that are made of them.
        rows: the rows; one row if they are a context.
        place: the field of the request that holds them: ``rows``, ``context`` or ``candidates``.
    """

    side: Side
    rows: Rows
    place: str

    @property
    def is_context(self) -> bool:
        """Whether the row holds for all rows of the request."""
        return self.place == "context"

    @property
    def count(self) -> int:
        """How many rows there are."""
        if isinstance(self.rows, Sequence):
            return len(self.rows)
        if isinstance(self.rows, Mapping):
            return len(next(iter(cast("Mapping[str, Sequence[Any]]", self.rows).values()), ()))
        return self.rows.num_rows


@dataclass(slots=True)
class JoinedRows:
    """Rows of one side and one or several requests.

    Attributes:
        side, place: as of each.
        parts: the rows, in the order of the requests.
    """

    side: Side
    place: str
    parts: list[GivenRows] = field(default_factory=list[GivenRows])

    def table(self) -> pa.Table:
        """Returns the rows as one table.

        Raises:
            DataError: no table can be made of them.
        """
        if len(self.parts) == 1:
            return to_arrow(self.parts[0].rows, self.side.schema)  # pyright: ignore[reportArgumentType]
        if isinstance(self.parts[0].rows, Sequence):
            records = list(itertools.chain.from_iterable(cast("Sequence[Record]", each.rows) for each in self.parts))
            columns = {name: [row.get(name) for row in records] for name in self.side.columns}
            return to_arrow(columns, self.side.schema)
        return pa.concat_tables([to_arrow(each.rows, self.side.schema) for each in self.parts])  # pyright: ignore[reportArgumentType]


class Kinds:
    """What the values of the columns of some rows are, as far as that decides how a table reads them.

    Args:
        given: the rows.
    """

    def __init__(self, given: GivenRows) -> None:
        self.side, self.place = given.side, given.place
        self._fixed: Hashable = None
        self._of: dict[str, Hashable] = {}
        rows = given.rows
        if isinstance(rows, Sequence):
            for name in given.side.columns:
                self._of[name] = object() if "." in name else _kind([row.get(name) for row in rows])
        elif isinstance(rows, Mapping):
            self._fixed = object()  # of tensors: each request is read alone
        else:
            self._fixed = (tuple(rows.column_names), tuple(map(str, rows.schema.types)))

    def take(self, other: Kinds) -> bool:
        """Returns whether the rows of ``other`` can be joined with these, and takes their kinds over if so."""
        if self.side is not other.side or self.place != other.place or self._fixed != other._fixed:
            return False
        taken: dict[str, Hashable] = {}
        for name, mine in self._of.items():
            theirs = other._of[name]
            if mine is not None and theirs is not None and mine != theirs:
                return False
            taken[name] = theirs if mine is None else mine
        self._of = taken
        return True


def _kind(values: list[Any]) -> Hashable:
    """Returns what the values are: None if all are missing; equal to another only if both can be joined."""
    kinds = set(map(type, values))
    kinds.discard(NoneType)
    if not kinds:
        return None
    if kinds <= _SCALARS:
        if int in kinds and any(value not in _INT64 for value in values if isinstance(value, int)):
            return object()
        return frozenset(kinds)
    if kinds == {list}:
        items = list(itertools.chain.from_iterable(value for value in values if value is not None))
        found = _kind(items)
        return None if found is None else ("list", found) if isinstance(found, frozenset) else found
    return object()
