"""Typed columns as text formats can hold them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.errors import DataError


def check_writable(schema: pa.Schema) -> None:
    """Refuse columns that no text can hold, before anything is computed.

    Raises:
        DataError: naming the column.
    """
    for field in schema:
        if _holds_bytes(field.type) and pt.is_nested(field.type):
            raise DataError(
                f"column {field.name!r} holds {field.type}, bytes inside it cannot be written as text",
                "write .parquet, or leave the column out of the files",
            )


def in_cells(table: pa.Table, delimiters: Mapping[str, str]) -> pl.DataFrame:
    """Columns for CSV: lists of single values named in ``delimiters`` are joined, other nested values become JSON."""
    frame = in_json(table)
    texts: list[pl.Expr] = []
    for field in table.schema:
        if not pt.is_nested(field.type):
            continue
        delimiter = delimiters.get(field.name)
        kind = frame.schema[field.name]
        if delimiter is not None and isinstance(kind, pl.List) and not kind.inner.is_nested():  # type: ignore[union-attr]
            texts.append(pl.col(field.name).cast(pl.List(pl.String)).list.join(delimiter))
        else:
            texts.append(_json(field.name))
    return frame.with_columns(texts)


def in_json(table: pa.Table) -> pl.DataFrame:
    """Columns for JSON: times and decimals as text, bytes as the text they hold.

    Raises:
        DataError: bytes that are no UTF-8, naming the column.
    """
    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
        try:
            if pt.is_temporal(kind) or pt.is_decimal(kind) or _holds_bytes(kind):
                text = table.column(place).cast(kind).cast(pa.string())
                table = table.set_column(place, field.name, text)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"column {field.name!r} holds bytes that are no UTF-8, which cannot be written as text",
                "write .parquet, or leave the column out of the files",
            ) from error
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _json(name: str) -> pl.Expr:
    """A nested column as JSON, by way of an object with one key, whose brace and key are cut off; missing stays so."""
    whole = pl.struct(pl.col(name).alias("x")).struct.json_encode()
    inside = whole.str.strip_prefix('{"x":').str.head(-1)
    return pl.when(pl.col(name).is_not_null()).then(inside).alias(name)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pt.is_nested(kind):
        return any(_holds_bytes(kind.field(place).type) for place in range(kind.num_fields))
    if pt.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    return pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind)
