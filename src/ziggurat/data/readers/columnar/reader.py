"""Reads the declared columns of columnar files in blocks of bounded size. The offset of a position counts rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.schema import RawSchema, ValueType
from ziggurat.data.readers.assemble import assemble, join
from ziggurat.data.readers.blocks import FileRange, Position, RawBlock
from ziggurat.data.readers.cells.text import CellRules
from ziggurat.data.readers.columnar.convert import convert_columns
from ziggurat.data.readers.columnar.file import (
    LEAST_CELL_BYTES,
    ColumnarFile,
    OpenColumnar,
    explained_reads,
    resolve_columns,
)
from ziggurat.data.readers.columnar.paths import ColumnPath, replaced_types
from ziggurat.data.readers.reader import BLOCK_BYTES, FILE_RANGE_BYTES, RawSource
from ziggurat.data.readers.rejection_reasons import TEXT_LIMIT
from ziggurat.data.readers.source_files import SourceFile

_MOST_ROWS = 2**17


class ColumnarReader(RawSource):
    """Reads columnar files; see :class:`RawSource`.

    Args:
        files: the files to read.
        open_file: opens one.
        what: the name of the format, for messages.
        schema: the columns to deliver.
        rules: the rules for reading cells.
        block_bytes: approximate decoded bytes per block.

    Raises:
        DataError: a file is truncated, corrupt or empty, lacks a column, or has one that cannot be converted to its
            declared type.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        open_file: OpenColumnar,
        what: str,
        schema: RawSchema,
        rules: CellRules,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(files)
        self._open, self._what = open_file, what
        self._schema = schema
        self._rules = rules
        self._block_bytes = block_bytes
        for file in files:
            with open_file(file, ()) as opened:
                resolve_columns(file, opened, schema)

    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        files = len(self.files) if end is None else end.file + (end.offset > 0)
        for index in range(start.file, files):
            skipped = start.offset if index == start.file else 0
            stop = end.offset if end is not None and index == end.file else None
            yield from self._file_blocks(index, skipped, stop)

    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        for index in range(start.file, len(self.files)):
            range_start, whole_file = start if index == start.file else Position(index), Position(index + 1)
            with self._open(self.files[index], ()) as opened, self._explained(self.files[index]):
                groups = opened.groups()
            row, size_bytes, total = 0, 0, sum(rows for rows, _ in groups)
            for rows, group_bytes in groups:
                row += rows
                if row <= range_start.offset or range_start.file > index:
                    continue
                size_bytes += group_bytes
                if size_bytes >= FILE_RANGE_BYTES or row == total:
                    end = Position(index, row, row + 1) if row < total else whole_file
                    yield FileRange(range_start, end)
                    range_start, size_bytes = end, 0
            if not groups:
                yield FileRange(range_start, whole_file)

    def read_block(self, start: Position, end: Position) -> RawBlock:
        file = self.files[start.file]
        with self._open(file, self._dictionary_columns) as opened:
            paths = resolve_columns(file, opened, self._schema)
            stop = end.offset if end.file == start.file else None
            rows = _MOST_ROWS if stop is None else stop - start.offset
            parts: list[pa.RecordBatch] = []
            with self._explained(file):
                for batch, offset in _batches(opened, list(paths.values()), rows, start.offset, stop):
                    parts.append(batch if stop is None else batch.slice(0, stop - offset))
                    if stop is not None and offset + batch.num_rows >= stop:
                        break
                whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
            file.check_unchanged()
            return self._block(file, paths, whole, start.offset, end, 0)

    def _explained(self, file: SourceFile) -> Any:
        return explained_reads(file, self._what)

    @property
    def _dictionary_columns(self) -> list[str]:
        """Columns to read as dictionaries."""
        return [c.name for c in self._schema.columns if c.type is ValueType.TEXT and not c.many]

    def _file_blocks(self, index: int, skipped: int, end_row: int | None) -> Iterator[RawBlock]:
        file = self.files[index]
        with self._open(file, self._dictionary_columns) as opened:
            paths = resolve_columns(file, opened, self._schema)
            needed, total = list(paths.values()), opened.rows
            with self._explained(file):
                rows = self._rows_per_block(opened, needed)
            batches = _batches(opened, needed, rows, skipped, end_row)
            following: tuple[pa.RecordBatch, int] | None = self._next(file, batches)
            while following is not None:
                batch, offset = following
                file.check_unchanged()
                stop = offset + batch.num_rows
                stored = opened.stored_bytes(stop, file.size_bytes)
                following = self._next(file, batches) if total is None else None
                ends = following is None if total is None else stop == total
                end = Position(index + 1) if ends else Position(index, stop, stop + 1)
                yield self._block(file, paths, batch, offset, end, stored)
                if total is not None:
                    following = self._next(file, batches)

    def _next(
        self, file: SourceFile, batches: Iterator[tuple[pa.RecordBatch, int]]
    ) -> tuple[pa.RecordBatch, int] | None:
        with self._explained(file):
            return next(batches, None)

    def _block(
        self,
        file: SourceFile,
        paths: dict[str, ColumnPath],
        batch: pa.RecordBatch,
        offset: int,
        end: Position,
        stored_bytes: int,
    ) -> RawBlock:
        columns = convert_columns(self._schema, lambda name: paths[name].take(batch), self._rules)
        lines = np.arange(offset + 1, offset + 1 + batch.num_rows, dtype=np.int64)
        text_of = row_text(batch.select(list(dict.fromkeys(path.column for path in paths.values()))))
        parsed = assemble(self._schema, columns, lines, str(file.path), text_of)
        parsed = join(self._schema, [parsed])
        return RawBlock(parsed.table, parsed.lines, str(file.path), parsed.bad, end, stored_bytes)

    def _rows_per_block(self, opened: ColumnarFile, paths: Sequence[ColumnPath]) -> int:
        row_bytes = max(opened.row_bytes(paths), LEAST_CELL_BYTES * len(self._schema.columns), 1)
        return max(1, min(self._block_bytes // row_bytes, _MOST_ROWS))


def _batches(
    opened: ColumnarFile, paths: Sequence[ColumnPath], rows: int, skipped: int, end_row: int | None = None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields batches from row ``skipped`` on, each with its offset in rows; groups before that row are not read.

    ``end_row`` is the row to stop at: the end of a group, unless there are no groups; default: the end of the file.
    """
    first = last = 0
    offset, reached = 0, 0
    groups = opened.groups() if skipped or end_row is not None else []
    while first < len(groups) and offset + groups[first][0] <= skipped:
        offset += groups[first][0]
        first += 1
    last, reached = first, offset
    while last < len(groups) and (end_row is None or reached < end_row):
        reached += groups[last][0]
        last += 1
    for batch in opened.batches(paths, rows, first, last if groups else None):
        unread = batch.slice(max(skipped - offset, 0))
        offset += batch.num_rows
        if unread.num_rows:
            yield unread, offset - unread.num_rows
        if not groups and end_row is not None and offset >= end_row:
            return


def row_text(batch: pa.RecordBatch) -> Callable[[int], str]:
    """Returns a function that gives the text of a row for a :class:`BadRow`: its JSON, truncated."""

    def text_of(row: int) -> str:
        cells = {name: _python_value(batch.column(name).slice(row, 1)) for name in batch.schema.names}
        return json.dumps(cells, ensure_ascii=False, default=repr)[:TEXT_LIMIT]

    return text_of


def _python_value(cell: pa.Array) -> Any:
    """Returns the single value of ``cell``; as bytes if its text is not UTF-8."""
    try:
        return cell.to_pylist()[0]
    except UnicodeDecodeError:
        plain = cell.dictionary_decode() if pt.is_dictionary(cell.type) else cell
        return plain.cast(bytes_type(plain.type)).to_pylist()[0]
    except (OverflowError, ValueError):
        return f"a {cell.type} that Python cannot represent"


def bytes_type(kind: pa.DataType) -> pa.DataType:
    """Returns a type with bytes in place of text, at any depth."""
    return replaced_types(kind, _bytes_of)


def _bytes_of(kind: pa.DataType) -> pa.DataType:
    if pt.is_string(kind):
        return pa.binary()
    if pt.is_large_string(kind):
        return pa.large_binary()
    return pa.binary_view() if pt.is_string_view(kind) else kind
