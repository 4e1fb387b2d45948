"""Converts rows in memory to a raw block, by the same rules as files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.assemble import assemble, join
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.cells.text import CellRules
from ziggurat.data.readers.columnar.convert import convert_columns, mismatch
from ziggurat.data.readers.columnar.paths import ColumnPath, resolve

NAME = "<rows in memory>"


def read_table(table: pa.Table, schema: RawSchema, rules: CellRules | None = None) -> RawBlock:
    """Returns the columns of ``schema`` from ``table``; rows with a cell of another type are reported in ``bad``.

    Raises:
        DataError: a column is missing, or its type cannot be converted to the declared one.
    """
    rules = rules or CellRules(("",), False)
    paths: dict[str, ColumnPath] = {}
    for column in schema.columns:
        name = column.source
        path = paths.get(name) or resolve(table.schema, name)
        if path is None:
            close = nearest(name, table.column_names)
            raise DataError(
                f"{NAME}: no column {name!r}; there are: {', '.join(table.column_names[:20])}",
                f"did you mean {close!r}?" if close else "add the column",
            )
        problem = mismatch(path.type, column)
        if problem is not None:
            raise DataError(f"{NAME}, column {name!r}: {problem[0]}", problem[1])
        paths[name] = path
    lines = np.arange(1, table.num_rows + 1, dtype=np.int64)
    used = list(dict.fromkeys(path.column for path in paths.values()))
    batch = pa.RecordBatch.from_arrays([_array(table.column(name).combine_chunks()) for name in used], names=used)
    converted = convert_columns(schema, lambda name: paths[name].take(batch), rules)
    parsed = join(schema, [assemble(schema, converted, lines, NAME, lambda row: _text_of(table, row))])
    return RawBlock(parsed.table, parsed.lines, NAME, parsed.bad)


def _text_of(table: pa.Table, row: int) -> str:
    """Returns a row as text; empty if Python has no value for one of its cells, such as a year beyond 9999."""
    try:
        return str(table.slice(row, 1).to_pylist()[0])
    except (OverflowError, ValueError):
        return ""


def _array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns ``values`` as one array; ``combine_chunks`` leaves empty and dictionary columns chunked."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
