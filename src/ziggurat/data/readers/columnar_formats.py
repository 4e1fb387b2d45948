"""The columnar sources, and how the files of each are opened."""

from __future__ import annotations

from functools import partial

from ziggurat.data.readers.arrow import reader as arrow
from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.columnar.file import OpenColumnar
from ziggurat.data.readers.orc import reader as orc
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet import reader as parquet
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.sql import duckdb, sqlite
from ziggurat.data.readers.sql.duckdb import DuckdbSource
from ziggurat.data.readers.sql.sqlite import SqliteSource

ColumnarSource = ParquetSource | ArrowSource | OrcSource | SqliteSource | DuckdbSource


def columnar_format(config: ColumnarSource) -> tuple[OpenColumnar, str]:
    """Returns the function that opens a file of a source, and the name of its format for messages."""
    match config:
        case ParquetSource():
            return parquet.open_parquet, parquet.WHAT
        case ArrowSource():
            return arrow.open_arrow, arrow.WHAT
        case OrcSource():
            return orc.open_orc, orc.WHAT
        case SqliteSource():
            return partial(sqlite.open_sqlite, config=config), sqlite.WHAT
        case DuckdbSource():
            return partial(duckdb.open_duckdb, config=config), duckdb.WHAT
