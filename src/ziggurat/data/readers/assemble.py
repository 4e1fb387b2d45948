"""Assembles converted columns into a table of good rows and a list of rejected rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.blocks import BadRow
from ziggurat.data.readers.cells.text import Converted
from ziggurat.data.readers.rejection_reasons import rejection_reason

REQUIRED = "required cell is empty"


@dataclass(frozen=True, slots=True)
class Parsed:
    """Good rows with their line numbers, and rejected rows, of one part of a file; see :class:`RawBlock`."""

    table: pa.Table
    lines: npt.NDArray[np.int64]
    bad: list[BadRow] = field(default_factory=list[BadRow])


def assemble(
    schema: RawSchema,
    columns: Sequence[Converted],
    lines: npt.NDArray[np.int64],
    file: str,
    text_of: Callable[[int], str],
) -> Parsed:
    """Separates good rows, valid in every column, from rejected ones, each with the reason of its first bad column.

    Args:
        schema: the declared columns.
        columns: the converted columns of ``schema``, in its order, all of the same length.
        lines: the line number of each row.
        file: the path to report with rejected rows.
        text_of: returns the text of a row; called only for rejected rows.
    """
    reasons: dict[int, tuple[str, str]] = {}
    for column, converted in zip(schema.columns, columns, strict=True):
        for row, reason in (missing_required(converted.values, column) | converted.bad).items():
            reasons.setdefault(row, (column.name, reason))
    bad = [BadRow(file, int(lines[row]), *reasons[row], text_of(row)) for row in sorted(reasons)]
    table = pa.table([converted.values for converted in columns], names=list(schema.names))
    if bad:
        good = np.ones(len(lines), np.bool_)
        good[list(reasons)] = False
        table, lines = table.filter(pa.array(good)), lines[good]
    return Parsed(table, lines, bad)


def join(schema: RawSchema, parts: Sequence[Parsed]) -> Parsed:
    """Concatenates consecutive parts; each column becomes one chunk, TEXT and INTEGER ``dictionary<int32, ...>``."""
    assert parts
    table = pa.concat_tables([part.table for part in parts]) if len(parts) > 1 else parts[0].table
    columns = [_one_chunk(table.column(column.name), column) for column in schema.columns]
    lines = np.concatenate([part.lines for part in parts])
    return Parsed(pa.table(columns, names=list(schema.names)), lines, [row for part in parts for row in part.bad])


def missing_required(values: pa.Array, column: RawColumn) -> dict[int, str]:
    """Returns the rows that lack a required value, with the reason."""
    if not column.required:
        return {}
    absent = pc.equal(pc.list_value_length(values), 0) if column.many else pc.is_null(values)
    rows = np.flatnonzero(absent.to_numpy(zero_copy_only=False))
    hint = "fill the cell, or remove the row"
    return {int(row): rejection_reason(REQUIRED, f"a {column.type} is needed here", hint) for row in rows}


def _one_chunk(values: pa.ChunkedArray, column: RawColumn) -> pa.Array:
    if pa.types.is_dictionary(values.type):
        values = values.unify_dictionaries()
    whole = values.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # pyarrow keeps an empty column chunked
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], whole.type)
    if column.many or column.type in (ValueType.FLOAT, ValueType.TIME) or pa.types.is_dictionary(whole.type):
        return whole
    return whole.dictionary_encode()
