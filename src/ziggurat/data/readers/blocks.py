"""What every reader yields: a block of typed rows, the rows it had to refuse, and where to go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import RawColumn, ValueType


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a list of files from which reading can go on.

    Attributes:
        file: index into the source's files.
        offset: reader-specific: bytes of the (decompressed) text, or rows of a Parquet file.
        line: number of the next line or row, from 1, for messages.
    """

    file: int = 0
    offset: int = 0
    line: int = 1


@dataclass(frozen=True, slots=True)
class FileRange:
    """Consecutive rows of one file that can be read without what lies before them."""

    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was refused, with enough to find and correct it.

    Attributes:
        file: path of the file.
        line: line number (text formats, the header is line 1) or row number (Parquet), from 1.
        column: the offending column, or None when the whole row is malformed.
        reason: what was received and what is allowed.
        text: the row as read, cut to 2,000 characters.
    """

    file: str
    line: int
    column: str | None
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class RawBlock:
    """Up to some ten thousand consecutive good rows of one file.

    Attributes:
        table: the columns of the raw schema, in its order; see :func:`arrow_type` for their types. INTEGER and TEXT
            columns may instead be ``dictionary<int32, ...>`` of that type. FLOAT columns hold no NaN and no infinity:
            missing is null. Columns with ``required`` hold no null.
        lines: int64 (rows,), the line or row number of each row of ``table``, from 1.
        file: path of the file.
        bad: the refused rows of this stretch of the file.
        end: where reading goes on after this block.
        source_bytes: bytes of the file (as stored) consumed so far in this file, for progress.
    """

    table: pa.Table
    lines: npt.NDArray[np.int64]
    file: str
    bad: list[BadRow] = field(default_factory=list[BadRow])
    end: Position = field(default_factory=Position)
    source_bytes: int = 0


def arrow_type(column: RawColumn) -> pa.DataType:
    """int64, float64 (also of TIME) or string; ``list`` of it where the column holds many values."""
    value = {ValueType.INTEGER: pa.int64(), ValueType.TEXT: pa.string()}.get(column.type, pa.float64())
    return pa.list_(value) if column.many else value
