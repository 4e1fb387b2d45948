"""Makes an Arrow table of a data frame: polars, pandas, pyarrow, Hugging Face, or any with an Arrow C stream.

Rows may also be a list of dictionaries, and columns a dictionary of lists. A column of which Arrow can make none is
left out, with the reason, so that it does not hinder the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import polars as pl
import pyarrow as pa

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import duplicates
from ziggurat.data.readers.columnar.paths import splits
from ziggurat.data.readers.frame.columns import FAILURES, Refusal, arrow_column, is_of_arrow

NAME = "frame"
"""The name of rows in memory, in messages and for splits by chance, which depend on a file's name and on the row."""
ALLOWED = (
    "pass a polars or pandas DataFrame, a pyarrow Table, a dictionary of columns, a list of dictionaries (one for each "
    "row), or an object with the Arrow C stream interface"
)


@dataclass(frozen=True, slots=True)
class FrameTable:
    """The rows of a data frame.

    Attributes:
        table: the columns that Arrow can hold.
        refused: the others, each with the reason.
    """

    table: pa.Table
    refused: Mapping[str, Refusal]

    def check(
        self, names: Iterable[str], where: str = NAME, otherwise: str = "leave out of the config what is made of it"
    ) -> None:
        """Checks that none of these columns, or of the paths into columns, is refused.

        Args:
            names: the columns.
            where: how messages name the frame.
            otherwise: what to do instead of what the refusal says.

        Raises:
            DataError: one is.
        """
        for name in names:
            first = next((first for first, _ in splits(name) if first in self.refused), None)
            if first is not None and not any(each in self.table.column_names for each, _ in splits(name)):
                refusal = self.refused[first]
                raise DataError(
                    f"{where}, column {first!r}: {refusal.problem}",
                    f"{refusal.hint}; or {otherwise}",
                )


def frame_table(rows: Any, where: str = NAME) -> FrameTable:
    """Returns the rows of a data frame as an Arrow table, without copies where the types allow it.

    Args:
        rows: the data frame.
        where: how messages name it.

    Raises:
        DataError: ``rows`` is none of the known kinds, no column can be made of it, columns differ in length, or two
            have one name.
    """
    try:
        found = _converted(rows, where)
    except MemoryError:
        raise
    except (*FAILURES, OSError) as error:
        if isinstance(error, DataError):
            raise
        message = " ".join(str(error).split())[:300]
        raise DataError(
            f"{where}: no table can be made of this {type(rows).__name__} ({message})",
            "give each column values of one type",
        ) from error
    if found.refused and not found.table.column_names:
        name, refusal = next(iter(found.refused.items()))
        raise DataError(f"{where}, column {name!r}: {refusal.problem}", refusal.hint)
    if not found.table.num_rows and isinstance(rows, pa.RecordBatchReader):
        raise DataError(
            f"{where}: this RecordBatchReader holds no rows any more: it can be read once only",
            "read it into a table first, rows = reader.read_all(), and pass that each time",
        )
    return found


def is_records(rows: Any) -> TypeGuard[Sequence[Mapping[Any, Any]]]:
    """Whether ``rows`` is a list of dictionaries, one for each row."""
    return isinstance(rows, list | tuple) and bool(rows) and isinstance(rows[0], Mapping)


def check_names(names: Iterable[Any], where: str = NAME) -> None:
    """Checks that no name of a column occurs twice.

    Raises:
        DataError: one does.
    """
    if repeated := duplicates(map(str, names)):
        raise DataError(f"{where}: holds column {repeated[0]!r} more than once", "rename all but one")


def _converted(rows: Any, where: str) -> FrameTable:
    if isinstance(rows, pa.Table):
        return FrameTable(rows, {})
    if isinstance(rows, pa.RecordBatch):
        return FrameTable(pa.Table.from_batches([rows]), {})
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        if all(map(is_of_arrow, rows.get_columns())):
            return FrameTable(rows.to_arrow(), {})
        return _of_columns([(series.name, series) for series in rows.get_columns()], where)
    if is_records(rows):
        rows = columns_of_records(rows, where)
    module = type(rows).__module__.partition(".")[0]
    if module == "datasets":
        return FrameTable(_hugging_face(rows), {})
    if isinstance(rows, Mapping):
        return _of_columns(list(cast("Mapping[Any, Any]", rows).items()), where)
    if is_pandas(rows):
        return _of_columns(_pandas_columns(rows), where)
    if hasattr(rows, "__arrow_c_stream__") and not (module == "pandas" or isinstance(rows, pl.Series)):  # no Series
        return FrameTable(pa.table(rows), {})
    shown = " ".join(shorten(rows).split())
    raise DataError(f"{where}: received {shown} ({type(rows).__name__})", ALLOWED)


def is_pandas(rows: Any) -> bool:
    """Whether ``rows`` is a DataFrame of pandas, which need not be installed."""
    module = type(rows).__module__.partition(".")[0]
    return module == "pandas" and hasattr(rows, "to_numpy") and hasattr(rows, "columns")


def columns_of_records(rows: Sequence[Any], where: str = NAME) -> dict[Any, list[Any]]:
    """Returns the columns of a list of dictionaries; a key that one lacks is a missing value.

    Raises:
        DataError: one of them is no dictionary.
    """
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"{where}, row {number}: received {shorten(row)} ({type(row).__name__}) in a list of dictionaries",
                "give a dictionary for each row",
            )
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _of_columns(columns: Sequence[tuple[Any, Any]], where: str) -> FrameTable:
    """Makes a table of names and values."""
    check_names((name for name, _ in columns), where)
    arrays: dict[str, pa.Array | pa.ChunkedArray] = {}
    refused: dict[str, Refusal] = {}
    for name, values in columns:
        found = arrow_column(values)
        if isinstance(found, Refusal):
            refused[str(name)] = found
        else:
            arrays[str(name)] = found
    first = next(iter(arrays), "")
    for name, array in arrays.items():
        if len(array) != len(arrays[first]):
            raise DataError(
                f"{where}: column {first!r} has {len(arrays[first]):,} values, column {name!r} {len(array):,}",
                "give every column a value for each row",
            )
    return FrameTable(pa.table(arrays), refused)


def _pandas_columns(rows: Any) -> list[tuple[Any, Any]]:
    """Returns the columns of a DataFrame of pandas, and the levels of an index that is more than the rows' numbers."""
    import pandas as pd

    columns = [(name, rows.iloc[:, number]) for number, name in enumerate(rows.columns)]
    if isinstance(rows.index, pd.RangeIndex):
        return columns
    for number, name in enumerate(rows.index.names):
        shown = f"__index_level_{number}__" if name is None else name
        columns.append((shown, pd.Series(rows.index.get_level_values(number))))
    return columns


def _hugging_face(rows: Any) -> pa.Table:
    """Returns the rows of a Hugging Face dataset that were selected, in their order."""
    if isinstance(rows, Mapping):
        splits = ", ".join(map(str, rows))
        raise DataError(f"{NAME}: received a DatasetDict, which holds several datasets: {splits}", "pass one of them")
    if not hasattr(rows, "num_rows"):
        raise DataError(
            f"{NAME}: received a Hugging Face {type(rows).__name__}, whose rows are not in memory",
            "load it without streaming=True, or write it to Parquet and name the files",
        )
    return rows.with_format("arrow")[:]
