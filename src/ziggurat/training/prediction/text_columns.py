"""Converts typed columns to types that text formats can hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.errors import DataError
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.typed import text_cells


def check_writable(schema: pa.Schema) -> None:
    """Refuses columns that cannot be written as text, before anything is computed.

    Raises:
        DataError: a column cannot be written; the message names it.
    """
    for field in schema:
        if _holds_bytes(field.type) and pt.is_nested(_values(field.type)):
            raise DataError(
                f"column {field.name!r} holds {field.type}, bytes inside it cannot be written as text",
                "write .parquet, or leave the column out of the files",
            )


def csv_frame(table: pa.Table, delimiters: Mapping[str, str]) -> pl.DataFrame:
    """Returns columns for CSV: flat lists named in ``delimiters`` are joined, other nested values become JSON."""
    frame = json_frame(table)
    texts: list[pl.Expr] = []
    for field in table.schema:
        if not pt.is_nested(field.type):
            continue
        delimiter = delimiters.get(field.name)
        kind = frame.schema[field.name]
        if delimiter is not None and isinstance(kind, pl.List) and not kind.inner.is_nested():  # type: ignore[union-attr]
            texts.append(pl.col(field.name).cast(pl.List(pl.String)).list.join(delimiter))
        else:
            texts.append(_json_column(field.name))
    return frame.with_columns(texts)


def json_frame(table: pa.Table) -> pl.DataFrame:
    """Returns columns for JSON: times and decimals as text, bytes as they are read: text or hexadecimal digits."""
    for index, field in enumerate(table.schema):
        kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
        if pt.is_temporal(kind) or pt.is_decimal(kind):
            table = table.set_column(index, field.name, table.column(index).cast(kind).cast(pa.string()))
        elif _holds_bytes(kind):
            chunks = [_text_of_bytes(cells) for cells in table.column(index).cast(kind).chunks]
            written = pa.list_(pa.string()) if pt.is_nested(kind) else pa.string()
            table = table.set_column(index, field.name, pa.chunked_array(chunks, written))
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _values(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the values of a list, which may be of any length, or the type itself."""
    return kind.value_type if pt.is_list(kind) or pt.is_large_list(kind) else kind


def _text_of_bytes(cells: pa.Array) -> pa.Array:
    if not pt.is_nested(cells.type):
        return text_cells(cells)
    lengths = pc.list_value_length(cells).fill_null(0).to_numpy(zero_copy_only=False)
    bounds = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    return pa.ListArray.from_arrays(bounds, text_cells(cells.flatten()), mask=cells.is_null())


def _json_column(name: str) -> pl.Expr:
    """Returns a nested column as JSON; missing values stay missing.

    The value is encoded as an object with one key, whose braces and key are then removed.
    """
    wrapped = pl.struct(pl.col(name).alias("x")).struct.json_encode()
    value = wrapped.str.strip_prefix('{"x":').str.head(-1)
    return pl.when(pl.col(name).is_not_null()).then(value).alias(name)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pt.is_nested(kind):
        return any(_holds_bytes(kind.field(index).type) for index in range(kind.num_fields))
    if pt.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)
