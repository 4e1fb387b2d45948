"""Makes an Arrow table of a data frame: polars, pandas, pyarrow, Hugging Face, or any with an Arrow C stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import duplicates

NAME = "frame"
"""The name of rows in memory, in messages and for splits by chance, which depend on a file's name and on the row."""

_FAILURES = (pa.ArrowException, ArithmeticError, AttributeError, TypeError, ValueError)
"""What Arrow and the libraries of data frames raise for values that they cannot convert."""


def as_table(rows: Any) -> pa.Table:
    """Returns the rows of a data frame as an Arrow table, without copies where the types allow it.

    Raises:
        DataError: ``rows`` is none of the known kinds, a column has values that Arrow cannot hold, or two columns have
            one name.
    """
    try:
        if repeated := duplicates(map(str, getattr(rows, "columns", ()) if _is_pandas(rows) else ())):
            raise DataError(f"{NAME}: holds column {repeated[0]!r} more than once", "rename all but one")
        table = _converted(rows)
    except MemoryError:
        raise
    except DataError:
        raise
    except _FAILURES as error:
        message = " ".join(str(error).split())[:300]
        raise DataError(
            f"{NAME}: no table can be made of this {type(rows).__name__} ({message})",
            "give each column values of one type",
        ) from error
    if repeated := duplicates(table.column_names):
        raise DataError(f"{NAME}: holds column {repeated[0]!r} more than once", "rename all but one")
    return table


def _converted(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        return rows.to_arrow()
    module = type(rows).__module__.partition(".")[0]
    if module == "datasets":
        return _hugging_face(rows)
    if isinstance(rows, Mapping):
        return pa.table(dict(rows))
    if _is_pandas(rows):
        return pa.Table.from_pandas(_plain_pandas(rows))
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    raise DataError(
        f"{NAME}: received {shorten(rows)} ({type(rows).__name__})",
        "pass a polars or pandas DataFrame, a pyarrow Table, or an object with the Arrow C stream interface",
    )


def _is_pandas(rows: Any) -> bool:
    module = type(rows).__module__.partition(".")[0]
    return module == "pandas" and hasattr(rows, "to_numpy") and hasattr(rows, "columns")


def _plain_pandas(rows: Any) -> Any:
    """Returns a data frame of pandas with names that are text, and with the times at which periods begin for them."""
    import pandas as pd

    if not all(isinstance(name, str) for name in rows.columns):
        rows = rows.set_axis([name if isinstance(name, str) else str(name) for name in rows.columns], axis=1)
    periods = [name for name, kind in rows.dtypes.items() if isinstance(kind, pd.PeriodDtype)]
    if periods:
        rows = rows.assign(**{name: rows[name].dt.to_timestamp() for name in periods})
    return rows.set_axis(rows.index.to_timestamp()) if isinstance(rows.index, pd.PeriodIndex) else rows


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
