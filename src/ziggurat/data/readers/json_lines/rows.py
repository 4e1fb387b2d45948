"""Complete rows of JSON lines as columns, for columnar outputs: text unchanged, numbers with the digits of the file.

Rows are converted one by one in Python, because neither pyarrow nor polars keeps the digits of a number. If the output
is JSON lines too, whole lines are copied instead, by :class:`~ziggurat.data.readers.raw_rows.LineRows`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.blocks import RawBlock, arrow_type
from ziggurat.data.readers.numbered_rows import LineNumbers
from ziggurat.data.readers.raw_rows import TextRows
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.records import RecordRules

Row = dict[str, Any]


class Digits(str):
    """The text of a JSON number, exactly as in the file."""

    __slots__ = ()


class JsonRows(TextRows):
    """The keys at the heads of the files as columns of text; lists and objects become JSON.

    Args:
        files: the files to read.
        names: path -> the keys at the head of that file.
        delimiters: key -> the delimiter that joins the values of its lists.
        typed: columns to return in their declared types instead, taken from the blocks.
        others: further keys and their types; if ``typed`` is given, those of a numeric type are returned as numbers.

    :meth:`take` raises a DataError for a row with an unknown key, or with another type of value where ``others``
    declares a number.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        names: Mapping[str, Sequence[str]],
        delimiters: Mapping[str, str],
        typed: RawSchema | None = None,
        others: Sequence[RawColumn] = (),
    ) -> None:
        super().__init__(files, RecordRules())
        self._delimiters = delimiters
        self._typed = {column.name: arrow_type(column) for column in typed.columns} if typed else {}
        self._numbers = {c.name: arrow_type(c) for c in others if typed and c.type is not ValueType.TEXT}
        all_names = dict.fromkeys([*(name for keys in names.values() for name in keys), *self._typed])
        types = {**self._numbers, **self._typed}
        self.schema = pa.schema([(name, types.get(name, pa.string())) for name in all_names])

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        records, texts = self.records(block, kept, rejected)
        locations = [f"{block.file}, line {line}" for line in block.lines[kept]]
        rows = [self._row(record, location) for record, location in zip(records.to_pylist(), locations, strict=True)]
        columns: list[pa.Array | pa.ChunkedArray] = []
        for field in self.schema:
            if field.name in self._typed:
                columns.append(block.table.column(field.name).take(pa.array(kept)).cast(field.type))
            elif field.name in self._numbers:
                values = [
                    _number(row.get(field.name), field, location) for row, location in zip(rows, locations, strict=True)
                ]
                columns.append(pa.array(values, field.type))
            else:
                columns.append(self._texts(rows, field.name))
        return pa.table(columns, schema=self.schema), texts

    def _row(self, record: bytes, location: str) -> Row:
        try:
            row: Row = json.loads(record, parse_int=Digits, parse_float=Digits, parse_constant=Digits)
        except UnicodeDecodeError:
            raise DataError(
                f"{location}: not UTF-8", "save the file as UTF-8, or write .jsonl, where rows pass as they are"
            ) from None
        for key in row:
            if key not in self.schema.names:
                raise DataError(
                    f"{location}: key {key!r} is not in the first rows of the file, so the output has no column for it",
                    "write .jsonl, which keeps every key, or give the file's first row this key",
                )
        return row

    def _texts(self, rows: Sequence[Row], name: str) -> pa.Array:
        delimiter = self._delimiters.get(name)
        texts = [cell_text(row.get(name), delimiter) for row in rows]
        try:
            return pa.array(texts, pa.string())
        except UnicodeEncodeError:  # a lone surrogate, which JSON can express and UTF-8 cannot
            escaped = [None if text is None else text.encode("utf-8", "backslashreplace").decode() for text in texts]
            return pa.array(escaped, pa.string())


def cell_text(value: Any, delimiter: str | None) -> str | None:
    """Returns ``value`` as the text of a cell; a list of scalars is joined by ``delimiter`` if one is given."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and delimiter is not None and not any(isinstance(e, list | dict) for e in value):
        return delimiter.join(cell_text(element, None) or "" for element in value if element is not None)
    return json_text(value)


def json_text(value: Any) -> str:
    """Returns ``value`` as JSON, with the text of :class:`Digits` unchanged."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, dict):
        items = (f"{json.dumps(key, ensure_ascii=False)}:{json_text(inner)}" for key, inner in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _number(value: Any, field: pa.Field, location: str) -> int | float | None:
    integer = pa.types.is_integer(field.type)
    try:
        if value is None:
            return None
        if isinstance(value, Digits):
            number = int(value) if integer else float(value)
            if not integer or np.iinfo(np.int64).min <= number <= np.iinfo(np.int64).max:
                return number
    except ValueError:
        pass
    raise DataError(
        f"{location}, key {field.name!r}: received {shorten(str(value))}, the first rows hold {field.type}",
        "write .jsonl or .csv, where it passes as it is",
    )
