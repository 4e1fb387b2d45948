"""Makes an Arrow table of rows in memory, and names the row and the column of a value that no table can hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
import pyarrow as pa

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.columnar.paths import splits
from ziggurat.data.readers.file_heads import check_columns
from ziggurat.data.readers.frame.columns import COLLECTIONS, FAILURES, MOST_DEPTH, has_objects, is_deep
from ziggurat.data.readers.frame.table import columns_of_records, frame_table, is_pandas, is_records
from ziggurat.data.readers.table_reader import NAME

Table = pa.Table | pl.DataFrame | pl.LazyFrame | Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]

T = TypeVar("T")
_ONE_TYPE = "give each column values of one type, as many as every other column has"


def to_arrow(rows: Table, needed: RawSchema) -> pa.Table:
    """Returns the columns that are needed; others are ignored, whatever they hold.

    Args:
        rows: a pyarrow Table, a polars or pandas DataFrame, a polars LazyFrame, a mapping from column names to values,
            a list of dictionaries, or anything with the Arrow C stream interface.
        needed: the columns that the features are made of.

    Raises:
        DataError: columns are missing, or a value cannot be held by an Arrow table; the message names row and column.
    """
    given: Any = columns_of_records(rows, NAME) if is_records(rows) else rows
    if isinstance(given, Mapping):
        columns = {str(name): values for name, values in cast("Mapping[Any, Any]", given).items()}
        arrays = {first: _array(columns[first], column) for first, column in _used(list(columns), needed).items()}
        return _converted(lambda: pa.table(arrays))
    if isinstance(given, pl.LazyFrame):
        chosen: Any = given.select(list(_used(_converted(given.collect_schema).names(), needed)))
    elif isinstance(given, pl.DataFrame):
        chosen = given.select(list(_used(given.columns, needed)))
    elif is_pandas(given):
        names = [str(name) for name in given.columns]
        used = _used([*names, *map(str, given.index.names)], needed)
        chosen = given.loc[:, [name in used for name in names]]
    else:
        chosen = frame_table(given, NAME).table
        chosen = chosen.select(list(_used(chosen.column_names, needed)))
    found = frame_table(chosen, NAME)
    found.check([column.source for column in needed.columns], NAME, "leave out the rows at fault")
    return found.table


def _used(names: Sequence[str], needed: RawSchema) -> dict[str, RawColumn]:
    """Returns the columns that are needed, of these names.

    Raises:
        DataError: some are missing, all of which are named, or one occurs twice.
    """
    holds = lambda name: any(first in names for first, _ in splits(name))  # noqa: E731
    check_columns(NAME, names, needed, holds=holds)
    used = {_first(column.source, names): column for column in needed.columns}
    for name in used:
        if names.count(name) > 1:
            raise DataError(f"{NAME}: column {name!r} occurs {names.count(name)} times", "name it once")
    return used


def _first(name: str, names: Collection[Any]) -> str:
    """Returns the column in which a path begins."""
    return next(first for first, _ in splits(name) if first in names)


def _converted(convert: Callable[[], T]) -> T:
    """Calls ``convert``; turns its errors into one of ours."""
    try:
        return convert()
    except MemoryError:
        raise
    except FAILURES as error:
        message = " ".join(str(error).split())[:300]
        raise DataError(f"{NAME}: no table can be made of them ({message})", _ONE_TYPE) from error


def _array(values: Any, column: RawColumn) -> pa.Array | pa.ChunkedArray:
    """Returns the values of one column as an Arrow array."""
    if isinstance(values, str | bytes | Mapping | set | frozenset) or not isinstance(values, Iterable):
        raise DataError(
            f"{NAME}, column {column.name!r}: no table can be made of {shorten(values)} ({type(values).__name__})",
            "give a list of values, one for each row",
        )
    if isinstance(values, pa.ChunkedArray):
        return values
    if not hasattr(values, "__len__"):
        values = list(cast("Iterable[Any]", values))
    if not isinstance(values, pa.Array) and str(getattr(values, "dtype", "object")).lower() == "object":
        _check_nesting(list(cast("Iterable[Any]", values)), column)
    try:
        try:
            return pa.array(values)
        except OverflowError:
            return pa.array([_small(value, column, row) for row, value in enumerate(values, 1)])
    except MemoryError:
        raise
    except FAILURES as error:
        if isinstance(error, DataError):
            raise
        raise _explained(list(values), column, error) from error


def _check_nesting(values: list[Any], column: RawColumn) -> None:
    """Refuses nested values where none is declared, and values that are nested very deeply.

    Arrow follows nested values by recursion, without a bound.
    """
    if column.many or column.vector is not None or "." in column.name:
        for row, value in enumerate(values, 1):
            if isinstance(value, COLLECTIONS) and is_deep(value, MOST_DEPTH):
                hint = f"at most {MOST_DEPTH} lists and objects in each other are allowed"
                raise _refused(row, column, "a deeply nested value", hint)
        return
    if any(issubclass(kind, COLLECTIONS) for kind in set(map(type, values))):
        lists = [value for value in values if isinstance(value, COLLECTIONS)]
        if any(_is_object(value) for value in lists) or any(
            issubclass(kind, COLLECTIONS)
            for kind in set(map(type, itertools.chain.from_iterable(each for each in lists if has_objects(each))))
        ):
            row = next(row for row, value in enumerate(values, 1) if _is_nested(value))
            raise _refused(row, column, "a nested value", "write its fields as columns of their own")


def _is_object(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, np.ndarray) and value.ndim != 1)


def _is_nested(value: Any) -> bool:
    return isinstance(value, COLLECTIONS) and (
        _is_object(value) or (has_objects(value) and any(isinstance(item, COLLECTIONS) for item in value))
    )


def _small(value: Any, column: RawColumn, row: int) -> Any:
    """Returns a value with the whole numbers in it that int64 cannot hold as the column's type, if that can."""
    if isinstance(value, COLLECTIONS):
        return [_small(item, column, row) for item in value]
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        return value
    if column.type is ValueType.TEXT:
        return str(value)
    if column.type is ValueType.FLOAT:
        try:
            return float(value)
        except OverflowError:
            raise _refused(row, column, shorten(value), "a number of at most 1.8e308 is allowed") from None
    if not -(2**63) <= value < 2**63:
        hint = "whole numbers from -2^63 to 2^63 - 1 are allowed; train with `type: text` for others"
        raise _refused(row, column, shorten(value), hint)
    return int(value)


def _explained(values: list[Any], column: RawColumn, error: Exception) -> DataError:
    """Returns the error for a column of which Arrow cannot make an array: it names the first value at fault."""
    if not _fails(values):
        message = " ".join(str(error).split())[:300]
        return DataError(f"{NAME}, column {column.name!r}: no table can be made of it ({message})", _ONE_TYPE)
    good, bad = 0, len(values)
    while bad - good > 1:  # the first ``good`` values make an array, the first ``bad`` do not
        middle = (good + bad) // 2
        if _fails(values[:middle]):
            bad = middle
        else:
            good = middle
    value = values[bad - 1]
    received = f"{shorten(value)} ({type(value).__name__})"
    if _fails([value]):
        return _refused(bad, column, received, _allowed(column))
    return _refused(bad, column, f"{received} after values of another type", _ONE_TYPE)


def _fails(values: Any) -> bool:
    try:
        pa.array(values)
    except FAILURES:
        return True
    return False


def _refused(row: int, column: RawColumn, received: str, hint: str) -> DataError:
    return DataError(
        f"{NAME}, line {row}, column {column.name!r}: received {received}, of which no table can be made", hint
    )


def _allowed(column: RawColumn) -> str:
    what = {
        ValueType.INTEGER: "whole numbers, as numbers or text",
        ValueType.FLOAT: "numbers, as numbers or text",
        ValueType.TEXT: "text",
        ValueType.TIME: "times, as datetimes or text",
    }[column.type]
    return f"give {'lists of ' if column.many else ''}{what}, and None where a value is missing"
