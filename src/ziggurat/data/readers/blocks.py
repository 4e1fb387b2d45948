"""What every reader yields: a block of typed rows, the rows it rejected, and the position after the block."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import RawColumn, ValueType


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a list of files from which reading can resume.

    Attributes:
        file: index into the source's files.
        offset: bytes of the (decompressed) text, or rows of a Parquet file.
        line: number of the next line or row, counted from 1, for messages.
    """

    file: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True, slots=True)
class FileRange:
    """Consecutive rows of one file that can be read without reading the rows before them."""

    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class BadRow:
    """A rejected row, with enough information to find and correct it.

    Attributes:
        file: path of the file.
        line: line number (text formats; a header is line 1) or row number (Parquet), counted from 1.
        column: the offending column, or None if the row as a whole is malformed.
        reason: what was received and what is allowed.
        text: the row as read, truncated to 2,000 characters.
    """

    file: str
    line: int
    column: str | None
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Consecutive rows of one file, typically some ten thousand.

    Attributes:
        table: the good rows. Its columns are those of the raw schema, in its order; :func:`arrow_type` gives their
            types. INTEGER and TEXT columns may instead be ``dictionary<int32, ...>`` of that type. FLOAT columns hold
            no NaN and no infinity; missing values are null. Columns with ``required`` hold no null.
        lines: int64 (rows,), the line or row number of each row of ``table``, counted from 1.
        file: path of the file.
        bad: the rejected rows of this part of the file.
        end: the position after this block, where reading can resume.
        source_bytes: bytes of this file (as stored) consumed so far, for progress.
    """

    table: pa.Table
    lines: npt.NDArray[np.int64]
    file: str
    bad: list[BadRow] = field(default_factory=list[BadRow])
    end: Position = field(default_factory=Position)
    source_bytes: int = 0


def arrow_type(column: RawColumn) -> pa.DataType:
    """Returns int64, float64 (also for TIME) or string; a ``list`` of it if the column holds many values."""
    value = {ValueType.INTEGER: pa.int64(), ValueType.TEXT: pa.string()}.get(column.type, pa.float64())
    return pa.list_(value) if column.many else value
