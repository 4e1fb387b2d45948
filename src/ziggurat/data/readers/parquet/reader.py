"""Reads the declared columns of Parquet files in batches of bounded size. The offset of a position counts rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.schema import RawSchema, ValueType
from ziggurat.data.readers.assemble import assemble, join
from ziggurat.data.readers.blocks import FileRange, Position, RawBlock
from ziggurat.data.readers.cells.typed import convert_typed, type_mismatch
from ziggurat.data.readers.reader import BLOCK_BYTES, FILE_RANGE_BYTES, CellsConfig, RawSource
from ziggurat.data.readers.rejection_reasons import TEXT_LIMIT
from ziggurat.data.readers.source_files import SourceFile, no_permission

_MOST_ROWS = 2**17
_LEAST_CELL_BYTES = 8
MOST_EXPANSION, FREE_BYTES = 500, 256 * 2**20
"""A file whose cells would become this many times as large, and more than these bytes, is not read. Columns of few
values become some 60 times as large."""


class ParquetSource(CellsConfig):
    """Apache Parquet."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    name: Literal["parquet"] = "parquet"


class ParquetReader(RawSource):
    """Reads Parquet files; see :class:`RawSource`.

    Args:
        files: the files to read.
        config: the rules for reading cells.
        schema: the columns to deliver.
        block_bytes: approximate decoded bytes per block.

    Raises:
        DataError: a file is truncated, corrupt or empty, lacks a column, or has one that cannot be converted to its
            declared type.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        config: ParquetSource,
        schema: RawSchema,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        super().__init__(files)
        self._schema = schema
        self._rules = config.cell_rules
        self._block_bytes = block_bytes
        for file in files:
            with open_parquet(file) as parquet:
                _check_columns(file, parquet, schema)

    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        files = len(self.files) if end is None else end.file + (end.offset > 0)
        for index in range(start.file, files):
            skipped = start.offset if index == start.file else 0
            stop = end.offset if end is not None and index == end.file else None
            yield from self._file_blocks(index, skipped, stop)

    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        for index in range(start.file, len(self.files)):
            range_start = start if index == start.file else Position(index)
            with open_parquet(self.files[index]) as parquet:
                groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
            row, size_bytes, total = 0, 0, sum(group.num_rows for group in groups)
            for group in groups:
                row += group.num_rows
                if row <= range_start.offset or range_start.file > index:
                    continue
                size_bytes += group.total_byte_size
                if size_bytes >= FILE_RANGE_BYTES or row == total:
                    end = Position(index, row, row + 1) if row < total else Position(index + 1)
                    yield FileRange(range_start, end)
                    range_start, size_bytes = end, 0

    def read_block(self, start: Position, end: Position) -> RawBlock:
        file = self.files[start.file]
        with open_parquet(file, self._dictionary_columns) as parquet:
            stop = end.offset if end.file == start.file else parquet.metadata.num_rows
            parts: list[pa.RecordBatch] = []
            with explained_reads(file):
                for batch, offset in _batches(parquet, self._schema.names, stop - start.offset, start.offset):
                    parts.append(batch.slice(0, stop - offset))
                    if offset + batch.num_rows >= stop:
                        break
                whole = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
            file.check_unchanged()
            return self._block(file, whole, start.offset, end, 0)

    @property
    def _dictionary_columns(self) -> list[str]:
        """Columns to read as dictionaries."""
        return [c.name for c in self._schema.columns if c.type is ValueType.TEXT and not c.many]

    def _file_blocks(self, index: int, skipped: int, end_row: int | None) -> Iterator[RawBlock]:
        file = self.files[index]
        with open_parquet(file, self._dictionary_columns) as parquet:
            total = parquet.metadata.num_rows
            batches = _batches(parquet, self._schema.names, self._rows_per_block(parquet), skipped, end_row)
            while True:
                with explained_reads(file):
                    next_batch = next(batches, None)
                if next_batch is None:
                    return
                batch, offset = next_batch
                file.check_unchanged()
                stop = offset + batch.num_rows
                end = Position(index + 1) if stop == total else Position(index, stop, stop + 1)
                yield self._block(file, batch, offset, end, file.size_bytes * stop // total)

    def _block(
        self, file: SourceFile, batch: pa.RecordBatch, offset: int, end: Position, stored_bytes: int
    ) -> RawBlock:
        columns = [convert_typed(batch.column(c.name), c, self._rules) for c in self._schema.columns]
        lines = np.arange(offset + 1, offset + 1 + batch.num_rows, dtype=np.int64)
        text_of = row_text(batch.select(list(self._schema.names)))
        parsed = assemble(self._schema, columns, lines, str(file.path), text_of)
        parsed = join(self._schema, [parsed])
        return RawBlock(parsed.table, parsed.lines, str(file.path), parsed.bad, end, stored_bytes)

    def _rows_per_block(self, parquet: pq.ParquetFile) -> int:
        group = parquet.metadata.row_group(0)
        chunks = [group.column(index) for index in range(group.num_columns)]
        needed = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in self._schema.names]
        stored = sum(chunk.total_uncompressed_size for chunk in needed) // max(group.num_rows, 1)
        row_bytes = max(stored, _LEAST_CELL_BYTES * len(self._schema.columns), 1)
        return max(1, min(self._block_bytes // row_bytes, _MOST_ROWS))


def _batches(
    parquet: pq.ParquetFile, names: Sequence[str], rows: int, skipped: int, end_row: int | None = None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields batches from row ``skipped`` on, each with its offset in rows; row groups before that row are not read.

    ``end_row`` is the row to stop at, which must be the end of a row group; default: the end of the file.
    """
    group, offset = 0, 0
    while offset + parquet.metadata.row_group(group).num_rows <= skipped:
        offset += parquet.metadata.row_group(group).num_rows
        group += 1
    last, reached = group, offset
    while last < parquet.metadata.num_row_groups and (end_row is None or reached < end_row):
        reached += parquet.metadata.row_group(last).num_rows
        last += 1
    groups = list(range(group, last))
    for batch in parquet.iter_batches(rows, row_groups=groups, columns=list(names)):
        unread = batch.slice(max(skipped - offset, 0))
        offset += batch.num_rows
        if unread.num_rows:
            yield unread, offset - unread.num_rows


def open_parquet(file: SourceFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Opens ``file``; the columns in ``dictionaries`` are read as dictionaries.

    Raises:
        DataError: the file changed, may not be read, or is not a Parquet file.
    """
    with explained_reads(file):
        file.check_unchanged()
        return pq.ParquetFile(file.path, read_dictionary=list(dictionaries))


@contextmanager
def explained_reads(file: SourceFile) -> Generator[None]:
    """Turns a failure to read ``file`` into an error that names the file and gives a hint."""
    try:
        yield
    except PermissionError as error:
        raise no_permission(file.path) from error
    except (pa.ArrowInvalid, OSError) as error:
        file.check_unchanged()
        raise DataError(
            f"{file.path}: truncated, corrupt or no Parquet file ({error})",
            "copy or write the file again; if it is text, name that format as the source",
        ) from error


def _check_columns(file: SourceFile, parquet: pq.ParquetFile, schema: RawSchema) -> None:
    found = parquet.schema_arrow
    if parquet.metadata.num_rows == 0:
        raise DataError(f"{file.path}: the file holds no rows", "remove it from `files`, or write it anew")
    cells_bytes = parquet.metadata.num_rows * _LEAST_CELL_BYTES * len(schema.columns)
    if cells_bytes > max(FREE_BYTES, MOST_EXPANSION * file.size_bytes):
        raise DataError(
            f"{file.path}: its {file.size_bytes:,} bytes declare {parquet.metadata.num_rows:,} rows, which would "
            f"become {cells_bytes:,} bytes; at most {MOST_EXPANSION} times as many are read",
            "if its content is right, write it without compression and dictionaries",
        )
    for column in schema.columns:
        indices = found.get_all_field_indices(column.name)
        if not indices:
            close = nearest(column.name, found.names)
            shown = ", ".join(found.names[:20]) + (", …" if len(found.names) > 20 else "")
            raise DataError(
                f"{file.path}: no column {column.name!r}; the file holds: {shown}",
                f"did you mean {close!r}?" if close else "correct the column's name",
            )
        if len(indices) > 1:
            raise DataError(f"{file.path}: holds column {column.name!r} {len(indices)} times", "rename all but one")
        problem = type_mismatch(found.field(indices[0]).type, column)
        if problem is not None:
            raise DataError(f"{file.path}, column {column.name!r}: {problem[0]}", problem[1])


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
        plain = cell.dictionary_decode() if pa.types.is_dictionary(cell.type) else cell
        raw = pa.list_(pa.binary()) if pa.types.is_nested(plain.type) else pa.binary()
        return plain.cast(raw).to_pylist()[0]
    except (OverflowError, ValueError):
        return f"a {cell.type} that Python cannot represent"
