"""The columnar sources, and how the files of each are opened."""

from __future__ import annotations

from ziggurat.data.readers.arrow import reader as arrow
from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.columnar.file import OpenColumnar
from ziggurat.data.readers.orc import reader as orc
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet import reader as parquet
from ziggurat.data.readers.parquet.reader import ParquetSource

ColumnarSource = ParquetSource | ArrowSource | OrcSource


def columnar_format(config: ColumnarSource) -> tuple[OpenColumnar, str]:
    """Returns the function that opens a file of a source, and the name of its format for messages."""
    match config:
        case ParquetSource():
            return parquet.open_parquet, parquet.WHAT
        case ArrowSource():
            return arrow.open_arrow, arrow.WHAT
        case OrcSource():
            return orc.open_orc, orc.WHAT
