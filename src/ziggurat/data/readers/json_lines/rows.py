"""Complete rows of JSON lines as columns, for columnar outputs: text unchanged, numbers with the digits of the file.

Neither pyarrow nor polars keeps the digits of a number, so msgspec divides each row into the texts of its values, and
columns are made of these. What it does not take, such as NaN, is read by Python's own parser, as is a block with a row
at fault, whose message is then the same. If the output is JSON lines too, whole lines are copied instead, by
:class:`~ziggurat.data.readers.raw_rows.LineRows`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
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
_VALUES, _ELEMENTS = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])


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
        self._names = frozenset(self.schema.names)

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        records, texts = self.records(block, kept, rejected)
        found = self._by_values(block, kept, records)
        return (self._by_rows(block, kept, records) if found is None else found), texts

    def _by_values(self, block: RawBlock, kept: LineNumbers, records: pa.BinaryArray) -> pa.Table | None:
        """Returns the columns, made of the texts of values; None where a row has to be read by Python's parser."""
        try:
            records.cast(pa.string())  # refuses what is not UTF-8
            rows = [_VALUES.decode(record) for record in records.to_pylist()]
            if not all(self._names.issuperset(row) for row in rows):
                return None
            columns: list[pa.Array | pa.ChunkedArray] = []
            for field in self.schema:
                if field.name in self._typed:
                    columns.append(self._from_block(block, kept, field))
                    continue
                values = [row.get(field.name) for row in rows]
                if field.name in self._numbers:
                    columns.append(pa.array(map(_number_text, values), pa.string()).cast(field.type))
                else:
                    delimiter = self._delimiters.get(field.name)
                    columns.append(pa.array([_value_text(value, delimiter) for value in values], pa.string()))
        except (msgspec.MsgspecError, pa.ArrowInvalid, UnicodeError, ValueError):
            return None
        return pa.table(columns, schema=self.schema)

    def _from_block(self, block: RawBlock, kept: LineNumbers, field: pa.Field) -> pa.ChunkedArray:
        return block.table.column(field.name).take(pa.array(kept)).cast(field.type)

    def _by_rows(self, block: RawBlock, kept: LineNumbers, records: pa.BinaryArray) -> pa.Table:
        """Returns the columns, with each row read by Python's parser."""
        locations = [f"{block.file}, line {line}" for line in block.lines[kept]]
        rows = [self._row(record, location) for record, location in zip(records.to_pylist(), locations, strict=True)]
        columns: list[pa.Array | pa.ChunkedArray] = []
        for field in self.schema:
            if field.name in self._typed:
                columns.append(self._from_block(block, kept, field))
            elif field.name in self._numbers:
                values = [
                    _number(row.get(field.name), field, location) for row, location in zip(rows, locations, strict=True)
                ]
                columns.append(pa.array(values, field.type))
            else:
                columns.append(self._texts(rows, field.name))
        return pa.table(columns, schema=self.schema)

    def _row(self, record: bytes, location: str) -> Row:
        try:
            row: Row = _parsed(record)
        except UnicodeDecodeError:
            raise DataError(
                f"{location}: not UTF-8", "save the file as UTF-8, or write .jsonl, where rows pass as they are"
            ) from None
        for key in row:
            if key not in self._names:
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


def _parsed(text: str | bytes) -> Any:
    """Returns JSON as Python's parser reads it, with numbers as :class:`Digits`."""
    return json.loads(text, parse_int=Digits, parse_float=Digits, parse_constant=Digits)


def _number_text(value: msgspec.Raw | None) -> str | None:
    """Returns the text of a number, None for null."""
    text = None if value is None else str(value, "utf-8")
    return None if text == "null" else text


def _value_text(value: msgspec.Raw | None, delimiter: str | None) -> str | None:
    """Returns a JSON value as the text of a cell, as :func:`cell_text` does."""
    if value is None:
        return None
    text = str(value, "utf-8")
    if text[0] == '"' and "\\" not in text:
        return text[1:-1]
    if text[0] == "[" and delimiter is not None and "[" not in text[1:] and "{" not in text:
        elements = (_value_text(each, None) for each in _ELEMENTS.decode(text) if str(each, "utf-8") != "null")
        return delimiter.join(each or "" for each in elements)
    if text[0] in '"[{n':
        return cell_text(_parsed(text), delimiter)
    return text


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
