"""Folders called ``key=value``, as Hive, Spark and DuckDB write them: each key is a column of the rows below it.

Keys and values are percent-decoded; ``__HIVE_DEFAULT_PARTITION__`` is a missing value. A value is a cell of text, read
as the type that the column is declared to have. A column of the same name in the files takes precedence.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.assemble import missing_required
from ziggurat.data.readers.blocks import BadRow, FileRange, Position, RawBlock, arrow_type
from ziggurat.data.readers.cells.text import CellRules, Converted, convert_text
from ziggurat.data.readers.numbered_rows import LineNumbers
from ziggurat.data.readers.raw_rows import RawRows
from ziggurat.data.readers.reader import RawSource
from ziggurat.data.readers.rejection_reasons import TEXT_LIMIT
from ziggurat.data.readers.source_files import SourceFile

_DEFAULT = "__HIVE_DEFAULT_PARTITION__"


def folder_values(file: SourceFile) -> dict[str, str | None]:
    """Returns the values of the keys in a file's name, from its outermost folder inwards."""
    values: dict[str, str | None] = {}
    for part in PurePosixPath(file.name).parts[:-1]:
        key, separator, value = part.partition("=")
        if separator and key:
            values[unquote(key)] = None if value == _DEFAULT else unquote(value)
    return values


def shared_keys(files: Sequence[SourceFile]) -> list[str]:
    """Returns the keys that the names of all files have."""
    found = [folder_values(file) for file in files]
    return [key for key in found[0] if all(key in values for values in found[1:])] if found else []


class PartitionedSource(RawSource):
    """Adds the values of folders to the blocks of another source.

    Args:
        inner: the source of the files, without the columns ``keys``.
        schema: the columns to deliver, with those.
        keys: the columns that are keys of folders.
        rules: the rules for reading cells.
    """

    def __init__(self, inner: RawSource, schema: RawSchema, keys: Sequence[str], rules: CellRules) -> None:
        super().__init__(inner.files)
        self._inner, self._schema, self._rules = inner, schema, rules
        self._keys = frozenset(keys)
        self._values = {str(file.path): folder_values(file) for file in inner.files}

    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        return map(self._with_values, self._inner.blocks(start, end))

    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        return self._inner.file_ranges(start)

    def read_block(self, start: Position, end: Position) -> RawBlock:
        return self._with_values(self._inner.read_block(start, end))

    def _with_values(self, block: RawBlock) -> RawBlock:
        columns: list[pa.Array | pa.ChunkedArray] = []
        names = list(self._schema.names)
        for column in self._schema.columns:
            if column.name not in self._keys:
                columns.append(block.table.column(column.name))
                continue
            cell = pa.array([self._values[block.file][column.name]], pa.string())
            converted = convert_text(cell, column, self._rules)
            reasons = missing_required(converted.values, column) | converted.bad
            if reasons:
                bad = sorted([*block.bad, *_rejected(block, column, reasons[0])], key=lambda row: row.line)
                table = pa.table([pa.array([], arrow_type(each)) for each in self._schema.columns], names=names)
                return dataclasses.replace(block, table=table, lines=block.lines[:0], bad=bad)
            columns.append(_repeated(converted, column, block.table.num_rows))
        return dataclasses.replace(block, table=pa.table(columns, names=names))


class PartitionedRows(RawRows):
    """Adds the values of folders, as text, to complete rows.

    Args:
        inner: the complete rows of the files.
        files: the files.
        keys: the keys to add.
    """

    def __init__(self, inner: RawRows, files: Sequence[SourceFile], keys: Sequence[str]) -> None:
        self._inner, self._keys = inner, keys
        self._values = {str(file.path): folder_values(file) for file in files}
        self.schema = inner.schema
        for key in keys:
            self.schema = self.schema.append(pa.field(key, pa.string()))

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        table, texts = self._inner.take(block, kept, rejected)
        for key in self._keys:
            value = pa.scalar(self._values[block.file][key], pa.string())
            table = table.append_column(key, pa.repeat(value, table.num_rows))
        return table, texts


def _repeated(converted: Converted, column: RawColumn, rows: int) -> pa.Array:
    if column.many or column.type in (ValueType.FLOAT, ValueType.TIME) or converted.values.null_count:
        return converted.values.take(pa.array(np.zeros(rows, np.int32)))
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), converted.values)


def _rejected(block: RawBlock, column: RawColumn, reason: str) -> list[BadRow]:
    """Returns all rows of a block as rejected, because of their folder's value."""
    cells = block.table.to_pylist()
    return [
        BadRow(block.file, int(line), column.name, reason, json.dumps(row, ensure_ascii=False)[:TEXT_LIMIT])
        for line, row in zip(block.lines, cells, strict=True)
    ]
