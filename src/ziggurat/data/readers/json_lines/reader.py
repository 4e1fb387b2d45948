"""Reads JSON lines: one object per line. A missing key is a missing value; a malformed line is a bad row.

pyarrow parses lines whose values have the JSON types seen at the head of the file;
:mod:`ziggurat.data.readers.cells.typed` then converts them to the types of the schema. Other lines are parsed one by
one.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
import pydantic

from ziggurat.core.errors import DataError, nearest, shorten
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.core.untrusted import json_fault
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.assemble import Parsed, assemble
from ziggurat.data.readers.blocks import BadRow, Position, arrow_type
from ziggurat.data.readers.cells.text import Converted, RejectedCell
from ziggurat.data.readers.cells.typed import convert_typed, type_mismatch
from ziggurat.data.readers.json_lines.cells import convert_json
from ziggurat.data.readers.reader import CellsConfig, TextConfig, TextParser
from ziggurat.data.readers.rejection_reasons import as_text, rejection_reason
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head
from ziggurat.data.readers.text.records import RecordRules, Records, has_lone_carriage_return

MALFORMED = "malformed JSON"

_HEAD_BYTES = 2**20
_PARSE_BYTES = 2**20
_EXACT_FLOAT = 2.0**53

Row = dict[str, Any]


class JsonLinesSource(TextConfig, CellsConfig):
    """One JSON object per line."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")

    NEWER: ClassVar[frozenset[str]] = TextConfig.NEWER | CellsConfig.NEWER

    name: Literal["jsonl"] = "jsonl"
    optional: list[str] = pydantic.Field(default=[])
    """Columns whose key may be absent from the first mebibyte of a file. Any other absent key is an error, as it is
    probably misspelt."""


class JsonLinesParser(TextParser):
    """Parses one file of a :class:`JsonLinesSource`; see :class:`TextParser`.

    Raises:
        DataError: the head of the file is not JSON lines, or lacks a column of ``schema``.
    """

    def __init__(self, file: SourceFile, config: JsonLinesSource, schema: RawSchema) -> None:
        self.records = RecordRules()
        block = read_head(file, _HEAD_BYTES, self.records.last_record_end)
        bom_bytes = len(codecs.BOM_UTF8) if block.data.startswith(codecs.BOM_UTF8) else 0
        self.first_row = Position(0, bom_bytes, 1)
        self._file = str(file.path)
        self._schema = schema
        self._rules = config.cell_rules
        head = list(_objects(Records.of(block.data[bom_bytes:], 1, self.records)))
        _check_head(file, head, block.data[bom_bytes:], schema, config.optional)
        self._format = self._parse_options(head)
        rows = [row for row in head if isinstance(row, dict)]
        self._others = _other_columns(rows, schema)

    def other_columns(self) -> tuple[RawColumn, ...]:
        """Returns the scalar keys of one JSON type in the head of the file that are not in the schema."""
        return self._others

    def parse(self, data: bytes, line: int) -> Parsed | None:
        if self._format is None or has_lone_carriage_return(data):
            return None
        records = Records.of(data, line, self.records)
        first_bytes = np.frombuffer(data, np.uint8)[records.starts]
        if not (first_bytes == ord("{")).all():
            return None  # other values are not rows, and pyarrow 26 crashes on a block that begins with null
        read = pajson.ReadOptions(use_threads=False, block_size=_PARSE_BYTES)
        try:
            table = pajson.read_json(pa.BufferReader(data), read, self._format)
        except (pa.ArrowInvalid, UnicodeDecodeError):  # UnicodeDecodeError: from quoting the text in its message
            return None
        if table.num_rows != len(records):
            return None
        columns: list[Converted] = []
        for column in self._schema.columns:
            cells = pa.concat_arrays(table.column(column.name).chunks)
            if column.type is ValueType.INTEGER and _loses_digits(cells):
                return None
            columns.append(convert_typed(cells, column, self._rules))
        text_of = lambda row: as_text(records[row])  # noqa: E731
        return assemble(self._schema, columns, records.lines, self._file, text_of)

    def parse_slowly(self, data: bytes, line: int) -> Parsed:
        records = Records.of(data, line, self.records)
        good: list[int] = []
        rows: list[Row] = []
        bad: list[BadRow] = []
        for index, row in enumerate(_objects(records)):
            if isinstance(row, str):
                bad.append(BadRow(self._file, int(records.lines[index]), None, row, as_text(records[index])))
            else:
                good.append(index)
                rows.append(row)
        columns = [self._column(rows, place) for place in range(len(self._schema.columns))]
        text_of = lambda row: as_text(records[good[row]])  # noqa: E731
        parsed = assemble(self._schema, columns, records.lines[good], self._file, text_of)
        return Parsed(parsed.table, parsed.lines, sorted([*bad, *parsed.bad], key=lambda row: row.line))

    def _column(self, rows: list[Row], place: int) -> Converted:
        column = self._schema.columns[place]
        values: list[Any] = []
        bad: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                values.append(convert_json(row.get(column.name), column, self._rules))
            except RejectedCell as error:
                values.append(None)
                bad[index] = str(error)
        return Converted(pa.array(values, arrow_type(column)), bad)

    def _parse_options(self, head: list[Row | str]) -> pajson.ParseOptions | None:
        """Returns parse options derived from the first rows; None if a column has mixed JSON types."""
        fields: list[tuple[str, pa.DataType]] = []
        for column in self._schema.columns:
            seen = [row[column.name] for row in head if isinstance(row, dict) and row.get(column.name) is not None]
            kind = (
                _arrow_type_of(seen) if seen else pa.string() if column.type is ValueType.TIME else arrow_type(column)
            )
            if kind is None or type_mismatch(kind, column):
                return None
            fields.append((column.name, kind))
        return pajson.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")


def _objects(records: Records) -> Iterator[Row | str]:
    """Yields each record as an object, or as the reason why it is not one."""
    for row in range(len(records)):
        try:
            value = json.loads(records[row].decode("utf-8", errors="surrogateescape"))
        except (ValueError, RecursionError) as error:
            yield rejection_reason(
                MALFORMED,
                f"received {shorten(as_text(records[row]))} ({json_fault(error)})",
                "write one JSON object a line",
            )
            continue
        if isinstance(value, dict):
            yield value
        else:
            yield rejection_reason(
                MALFORMED, f"received {shorten(value)}, not an object", "write one JSON object a line"
            )


def _check_head(file: SourceFile, head: list[Row | str], data: bytes, schema: RawSchema, optional: list[str]) -> None:
    rows = [row for row in head if isinstance(row, dict)]
    if not rows:
        if data.lstrip().startswith(b"["):
            raise DataError(
                f"{file.path}: holds a JSON array, not JSON lines", f"convert it: jq -c '.[]' '{file.path}'"
            )
        reason = head[0] if head else "only empty lines"
        raise DataError(
            f"{file.path}: none of the first {len(head)} lines is a JSON object ({reason})",
            "name the format the file has",
        )
    keys = {key: None for row in rows for key in row}
    for name in schema.names:
        if name not in keys and name not in optional:
            close = nearest(name, keys)
            shown = ", ".join(list(keys)[:20])
            hint = f"did you mean {close!r}? " if close else ""
            raise DataError(
                f"{file.path}: no key {name!r} in the first {len(rows)} rows, which hold: {shown}",
                f"{hint}If the key is only rare, list it under `optional` of the source",
            )


def _arrow_type_of(values: list[Any]) -> pa.DataType | None:
    """Returns the Arrow type of JSON values of one type; None if the types are mixed or the values are objects."""
    kinds = {type(value) for value in values}
    if kinds == {list}:
        elements = [element for value in values for element in value if element is not None]
        element = _arrow_type_of(elements) if elements else None
        return None if element is None or pa.types.is_nested(element) else pa.list_(element)
    if kinds <= {int, float}:
        return pa.float64() if float in kinds else pa.int64()
    return {str: pa.string(), bool: pa.bool_()}.get(kinds.pop()) if len(kinds) == 1 else None


def _loses_digits(cells: pa.Array) -> bool:
    """Whether integers that a float64 cannot hold exactly were parsed as floats."""
    if pa.types.is_list(cells.type):
        cells = cells.flatten()
    return pa.types.is_floating(cells.type) and pc.any(pc.greater_equal(pc.abs(cells), _EXACT_FLOAT)).as_py() is True


def _other_columns(head: Sequence[Row], schema: RawSchema) -> tuple[RawColumn, ...]:
    """Returns the keys in the head of a file that hold a single value of one JSON type, in order of appearance."""
    declared = {int: ValueType.INTEGER, float: ValueType.FLOAT, str: ValueType.TEXT, bool: ValueType.TEXT}
    columns: list[RawColumn] = []
    for name in dict.fromkeys(key for row in head for key in row if key not in schema.names):
        kinds = {type(row[name]) for row in head if row.get(name) is not None}
        kind = float if kinds == {int, float} else next(iter(kinds)) if len(kinds) == 1 else None
        if kind in declared:
            columns.append(RawColumn(name, declared[kind]))
    return tuple(columns)
