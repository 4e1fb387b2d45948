"""Parquet files: the declared columns only, in batches bounded by bytes. A position's offset is a number of rows."""

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
from ziggurat.data.readers.cells.typed import convert_typed, mismatch
from ziggurat.data.readers.reader import BLOCK_BYTES, STRETCH_BYTES, CellsConfig, RawSource
from ziggurat.data.readers.rejection_reasons import TEXT_LIMIT
from ziggurat.data.readers.source_files import SourceFile, no_permission

_MOST_ROWS = 2**17
_LEAST_CELL_BYTES = 8


class ParquetSource(CellsConfig):
    """Apache Parquet."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    name: Literal["parquet"] = "parquet"


class ParquetReader(RawSource):
    """Reads Parquet files; see :class:`RawSource`.

    Args:
        files: what to read.
        config: how cells are read.
        schema: the columns to deliver.
        block_bytes: about how many decoded bytes a block holds.

    Raises:
        DataError: a file is truncated, corrupt or empty, lacks a column, or holds one that cannot be what is declared.
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
            with opened(file) as parquet:
                _check(file, parquet, schema)

    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        files = len(self.files) if end is None else end.file + (end.offset > 0)
        for index in range(start.file, files):
            skipped = start.offset if index == start.file else 0
            stop = end.offset if end is not None and index == end.file else None
            yield from self._file_blocks(index, skipped, stop)

    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        for index in range(start.file, len(self.files)):
            place = start if index == start.file else Position(index)
            with opened(self.files[index]) as parquet:
                groups = [parquet.metadata.row_group(number) for number in range(parquet.metadata.num_row_groups)]
            row, size_bytes, total = 0, 0, sum(group.num_rows for group in groups)
            for group in groups:
                row += group.num_rows
                if row <= place.offset or place.file > index:
                    continue
                size_bytes += group.total_byte_size
                if size_bytes >= STRETCH_BYTES or row == total:
                    end = Position(index, row, row + 1) if row < total else Position(index + 1)
                    yield FileRange(place, end)
                    place, size_bytes = end, 0

    def between(self, start: Position, end: Position) -> RawBlock:
        file = self.files[start.file]
        with opened(file, self._texts) as parquet:
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
    def _texts(self) -> list[str]:
        """Columns read as dictionaries."""
        return [c.name for c in self._schema.columns if c.type is ValueType.TEXT and not c.many]

    def _file_blocks(self, index: int, skipped: int, end_row: int | None) -> Iterator[RawBlock]:
        file = self.files[index]
        with opened(file, self._texts) as parquet:
            total = parquet.metadata.num_rows
            batches = _batches(parquet, self._schema.names, self._rows_per_block(parquet), skipped, end_row)
            while True:
                with explained_reads(file):
                    following = next(batches, None)
                if following is None:
                    return
                batch, offset = following
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
        chunks = [group.column(place) for place in range(group.num_columns)]
        needed = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] in self._schema.names]
        stored = sum(chunk.total_uncompressed_size for chunk in needed) // max(group.num_rows, 1)
        row_bytes = max(stored, _LEAST_CELL_BYTES * len(self._schema.columns), 1)
        return max(1, min(self._block_bytes // row_bytes, _MOST_ROWS))


def _batches(
    parquet: pq.ParquetFile, names: Sequence[str], rows: int, skipped: int, end_row: int | None = None
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Batches from row ``skipped`` on, each with its offset; row groups before that row are not read.

    ``end_row`` is where a row group ends, and they with it; default: the file's end.
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
        fresh = batch.slice(max(skipped - offset, 0))
        offset += batch.num_rows
        if fresh.num_rows:
            yield fresh, offset - fresh.num_rows


def opened(file: SourceFile, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """``file``, with the columns ``dictionaries`` read as such.

    Raises:
        DataError: it changed, may not be read, or is no Parquet file.
    """
    with explained_reads(file):
        file.check_unchanged()
        return pq.ParquetFile(file.path, read_dictionary=list(dictionaries))


@contextmanager
def explained_reads(file: SourceFile) -> Generator[None]:
    """Turn a failure to read ``file`` into an error that names it and the hint."""
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


def _check(file: SourceFile, parquet: pq.ParquetFile, schema: RawSchema) -> None:
    found = parquet.schema_arrow
    if parquet.metadata.num_rows == 0:
        raise DataError(f"{file.path}: the file holds no rows", "remove it from `files`, or write it anew")
    for column in schema.columns:
        places = found.get_all_field_indices(column.name)
        if not places:
            close = nearest(column.name, found.names)
            shown = ", ".join(found.names[:20]) + (", …" if len(found.names) > 20 else "")
            raise DataError(
                f"{file.path}: no column {column.name!r}; the file holds: {shown}",
                f"did you mean {close!r}?" if close else "correct the column's name",
            )
        if len(places) > 1:
            raise DataError(f"{file.path}: holds column {column.name!r} {len(places)} times", "rename all but one")
        wrong = mismatch(found.field(places[0]).type, column)
        if wrong is not None:
            raise DataError(f"{file.path}, column {column.name!r}: {wrong[0]}", wrong[1])


def row_text(batch: pa.RecordBatch) -> Callable[[int], str]:
    """What gives the text of a row for a :class:`BadRow`: its JSON, cut."""

    def text_of(row: int) -> str:
        cells = {name: _plain(batch.column(name).slice(row, 1)) for name in batch.schema.names}
        return json.dumps(cells, ensure_ascii=False, default=repr)[:TEXT_LIMIT]

    return text_of


def _plain(cell: pa.Array) -> Any:
    """The one value of ``cell``; as bytes where its text is not UTF-8."""
    try:
        return cell.to_pylist()[0]
    except UnicodeDecodeError:
        plain = cell.dictionary_decode() if pa.types.is_dictionary(cell.type) else cell
        raw = pa.list_(pa.binary()) if pa.types.is_nested(plain.type) else pa.binary()
        return plain.cast(raw).to_pylist()[0]
