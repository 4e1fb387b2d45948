"""Reads JSON lines: one object per line. A missing key is a missing value; a malformed line is a bad row, and so is one
with a key twice that a column is read from.

pyarrow parses lines whose values have the JSON types seen at the head of the file;
:mod:`ziggurat.data.readers.cells.typed` then converts them to the types of the schema. Other lines are parsed one by
one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson
import pydantic

from ziggurat.core.errors import DataError, nearest, shorten
from ziggurat.core.schema import RawColumn, RawSchema, ValueType, VectorElement
from ziggurat.core.untrusted import json_fault
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.assemble import Parsed, assemble
from ziggurat.data.readers.blocks import BadRow, Position, arrow_type
from ziggurat.data.readers.cells.text import Converted, RejectedCell
from ziggurat.data.readers.columnar.convert import convert_columns, mismatch, split_vectors
from ziggurat.data.readers.columnar.paths import steps_type, take_steps
from ziggurat.data.readers.json_lines.cells import convert_json, convert_vector
from ziggurat.data.readers.json_lines.paths import Steps, find_steps, look_up, nested_type
from ziggurat.data.readers.json_lines.records_kind import RecordsKind
from ziggurat.data.readers.json_lines.repeated_keys import RepeatedKey, load_json
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

    NEWER: ClassVar[frozenset[str]] = TextConfig.NEWER | CellsConfig.NEWER | {"records"}

    name: Literal["jsonl"] = "jsonl"
    records: RecordsKind = "lines"
    """``lines``: one object a line. ``array``: the file is one JSON array of objects. ``python``: one Python literal a
    line, as in {'id': 7, 'ok': True}."""
    optional: list[str] = pydantic.Field(default=[])
    """Columns whose key may be absent from the first mebibyte of a file. Any other absent key is an error, as it is
    probably misspelt."""

    def opened_as(self, files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
        return tuple(replace(file, records=self.records) for file in super().opened_as(files))


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
        self._steps: dict[str, Steps] = {}
        head = list(_objects(Records.of(block.data[bom_bytes:], 1, self.records)))
        rows = [row for row in head if isinstance(row, dict)]
        self._steps = _find_columns(file, head, block.data[bom_bytes:], schema, config.optional)
        self._format = self._parse_options(rows)
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
        batch = (table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], table.schema)])[0]
        cells = {name: take_steps(batch, steps) for name, steps in self._steps.items()}
        if any(c.type is ValueType.INTEGER and _loses_digits(cells[c.source]) for c in self._schema.columns):
            return None
        columns = convert_columns(self._schema, cells.__getitem__, self._rules)
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
        declared = {c.vector.column: c.vector for c in self._schema.columns if c.vector is not None}
        vectors = {name: self._vectors(rows, vector) for name, vector in declared.items()}
        columns = [
            self._column(rows, column) if column.vector is None else vectors[column.vector.column][column.vector.index]
            for column in self._schema.columns
        ]
        text_of = lambda row: as_text(records[good[row]])  # noqa: E731
        parsed = assemble(self._schema, columns, records.lines[good], self._file, text_of)
        return Parsed(parsed.table, parsed.lines, sorted([*bad, *parsed.bad], key=lambda row: row.line))

    def _column(self, rows: list[Row], column: RawColumn) -> Converted:
        values: list[Any] = []
        bad: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                values.append(convert_json(look_up(row, self._steps[column.name]), column, self._rules))
            except RejectedCell as error:
                values.append(None)
                bad[index] = str(error)
        return Converted(pa.array(values, arrow_type(column)), bad)

    def _vectors(self, rows: list[Row], vector: VectorElement) -> list[Converted]:
        """Returns the numbers of all vectors of a column, by position."""
        values: list[list[float | None] | None] = []
        bad: dict[int, str] = {}
        for index, row in enumerate(rows):
            try:
                values.append(convert_vector(look_up(row, self._steps[vector.column]), self._rules))
            except RejectedCell as error:
                values.append(None)
                bad[index] = str(error)
        first, *others = split_vectors(pa.array(values, pa.list_(pa.float64())), vector.length, self._rules)
        return [Converted(first.values, first.bad | bad), *others]

    def _parse_options(self, rows: list[Row]) -> pajson.ParseOptions | None:
        """Returns parse options derived from the first rows; None if a column has mixed JSON types."""
        assumed = {c.source: pa.string() if c.type is ValueType.TIME else arrow_type(c) for c in self._schema.columns}
        columns = [(steps, assumed[name]) for name, steps in self._steps.items()]
        kind = nested_type(rows, columns)
        if kind is None:
            return None
        schema = pa.schema([kind.field(index) for index in range(kind.num_fields)])
        for column in self._schema.columns:
            if mismatch(steps_type(schema, self._steps[column.source]), column):
                return None
        return pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")


def _objects(records: Records) -> Iterator[Row | str]:
    """Yields each record as an object, or as the reason why it is not one."""
    for row in range(len(records)):
        try:
            value = load_json(records[row].decode("utf-8", errors="surrogateescape"))
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


def _find_columns(
    file: SourceFile, head: list[Row | str], data: bytes, schema: RawSchema, optional: list[str]
) -> dict[str, Steps]:
    """Returns the keys that lead to each source column, as the first rows have them.

    Raises:
        DataError: there are no rows, or none has a column that is not optional.
    """
    rows = [row for row in head if isinstance(row, dict)]
    if not rows:
        if data.lstrip().startswith(b"["):
            raise DataError(f"{file.path}: holds a JSON array, not JSON lines", "set `records: array` on the source")
        reason = head[0] if head else "only empty lines"
        raise DataError(
            f"{file.path}: none of the first {len(head)} lines is a JSON object ({reason})",
            "name the format the file has",
        )
    keys = {key: None for row in rows for key in row}
    found: dict[str, Steps] = {}
    for name in dict.fromkeys(column.source for column in schema.columns):
        steps = find_steps(rows, name)
        found[name] = steps or tuple(name.split("."))
        if steps is None and name not in optional:
            close = nearest(name, keys)
            shown = ", ".join(list(keys)[:20])
            hint = f"did you mean {close!r}? " if close else ""
            raise DataError(
                f"{file.path}: no key {name!r} in the first {len(rows)} rows, which hold: {shown}",
                f"{hint}If the key is only rare, list it under `optional` of the source",
            )
    return found


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
        kinds = {type(row[name]) for row in head if row.get(name) is not None} - {RepeatedKey}
        kind = float if kinds == {int, float} else next(iter(kinds)) if len(kinds) == 1 else None
        if kind in declared:
            columns.append(RawColumn(name, declared[kind]))
    return tuple(columns)
