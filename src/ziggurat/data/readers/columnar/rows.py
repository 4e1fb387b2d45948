"""Complete rows of columnar files, with every column in the file's own type."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.schema import duplicates
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.columnar.file import OpenColumnar, explained_reads
from ziggurat.data.readers.columnar.paths import takeable, takeable_type
from ziggurat.data.readers.columnar.reader import row_text
from ziggurat.data.readers.numbered_rows import LineNumbers, NumberedBatch, NumberedRows
from ziggurat.data.readers.raw_rows import RawRows, all_lines
from ziggurat.data.readers.reader import BLOCK_BYTES
from ziggurat.data.readers.source_files import SourceFile

_MOST_ROWS = 2**14


class ColumnarRows(RawRows):
    """Every column of every file, in the common type of all files; null in the rows of a file that lacks the column.

    Args:
        files: the files to read.
        open_file: opens one.
        what: the name of the format, for messages.

    Raises:
        DataError: a file cannot be read or names a column twice, or the types of a column in two files have no common
            type.
    """

    def __init__(self, files: Sequence[SourceFile], open_file: OpenColumnar, what: str) -> None:
        self.schema = _common_schema(files, open_file)
        self._numbered = NumberedRows(files, partial(_read_batches, open_file=open_file, what=what))

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        lines = all_lines(block, kept, rejected)
        parts = self._numbered.take(block.file, lines)
        if not parts:
            return self.schema.empty_table(), []
        found = pa.Table.from_batches(parts)
        texts: list[str] = []
        if len(rejected):
            is_rejected = np.isin(lines, rejected)
            batch = found.filter(pa.array(is_rejected)).combine_chunks().to_batches()[0]
            texts = list(map(row_text(batch), range(len(rejected))))
            found = found.filter(pa.array(~is_rejected))
        return self._with_all_columns(found), texts

    def _with_all_columns(self, table: pa.Table) -> pa.Table:
        for name in self.schema.names:
            if name not in table.schema.names:
                table = table.append_column(name, pa.nulls(table.num_rows))
        return table.select(self.schema.names).cast(self.schema)


def _read_batches(file: SourceFile, open_file: OpenColumnar, what: str) -> Generator[NumberedBatch]:
    with open_file(file, ()) as opened:
        with explained_reads(file, what):
            rows = max(1, min(BLOCK_BYTES // max(opened.row_bytes(None), 1), _MOST_ROWS))
        batches = opened.batches(None, rows)
        number = 1
        while True:
            with explained_reads(file, what):
                batch = next(batches, None)
            if batch is None:
                return
            file.check_unchanged()
            if batch.num_rows:
                columns = [takeable(column) for column in batch.columns]
                kept = pa.RecordBatch.from_arrays(columns, schema=_takeable_schema(batch.schema))
                yield np.arange(number, number + batch.num_rows, dtype=np.int64), kept
            number += batch.num_rows


def _takeable_schema(schema: pa.Schema) -> pa.Schema:
    fields = [field.with_type(takeable_type(field.type)) for field in schema]
    return pa.schema(fields, schema.metadata)


def _common_schema(files: Sequence[SourceFile], open_file: OpenColumnar) -> pa.Schema:
    schemas: list[pa.Schema] = []
    for file in files:
        with open_file(file, ()) as opened:
            schemas.append(_takeable_schema(opened.schema))
        if repeated := duplicates(schemas[-1].names):
            raise DataError(f"{file.path}: holds column {repeated[0]!r} more than once", "rename all but one")
    fields: list[pa.Field] = []
    for name in dict.fromkeys(name for schema in schemas for name in schema.names):
        same_name = [pa.schema([schema.field(name)]) for schema in schemas if name in schema.names]
        try:
            field = pa.unify_schemas(same_name, promote_options="permissive").field(0)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            types = ", ".join(dict.fromkeys(str(schema.field(0).type) for schema in same_name))
            raise DataError(
                f"column {name!r} is of several types in the files: {types}",
                "write it alike in all files, or take the files one by one",
            ) from error
        fields.append(field if len(same_name) == len(schemas) else field.with_nullable(True))
    return pa.schema(fields, schemas[0].metadata)
