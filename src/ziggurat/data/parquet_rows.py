"""Rows of Parquet files as they stand there, with every column in the file's own type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.data.parquet_reader import explained_reads, opened
from ziggurat.data.reader import BLOCK_BYTES
from ziggurat.data.source_files import SourceFile

_MOST_ROWS = 2**14


class ParquetRows:
    """Hands out rows by number, each file once from front to back, while holding one batch.

    Attributes:
        schema: the columns that all files have, in the order of the first; of a type that holds each file's own.

    Args:
        files: what to read, in the order in which rows are going to be asked for.

    Raises:
        DataError: a file that cannot be read, or a column whose types in two files have no common one.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.schema = _common_schema(files)
        self._files = {str(file.path): file for file in files}
        self._path = ""
        self._batches: Iterator[tuple[int, pa.RecordBatch]] = iter(())
        self._current: tuple[int, pa.RecordBatch] | None = None

    def take(self, path: str, lines: npt.NDArray[np.int64]) -> pa.Table:
        """The rows of one file with the numbers ``lines`` (from 1, ascending, beyond all that were taken before)."""
        if path != self._path:
            self._path, self._batches, self._current = path, self._read(self._files[path]), None
        parts: list[pa.RecordBatch] = []
        rows = lines - 1
        while len(rows):
            if self._current is None:
                self._current = next(self._batches)
            offset, batch = self._current
            inside = int(np.searchsorted(rows, offset + batch.num_rows))
            parts.append(batch.take(pa.array(rows[:inside] - offset)))
            rows = rows[inside:]
            if len(rows):
                self._current = None
        if not parts:
            return self.schema.empty_table()
        return pa.Table.from_batches(parts).cast(self.schema)

    def _read(self, file: SourceFile) -> Generator[tuple[int, pa.RecordBatch]]:
        """Batches with the number of rows before each."""
        with opened(file) as parquet:
            group = parquet.metadata.row_group(0)
            row_bytes = max(group.total_byte_size // max(group.num_rows, 1), 1)
            rows = max(1, min(BLOCK_BYTES // row_bytes, _MOST_ROWS))
            batches = parquet.iter_batches(rows, columns=self.schema.names)
            offset = 0
            while True:
                with explained_reads(file):
                    batch = next(batches, None)
                if batch is None:
                    return
                file.check_unchanged()
                yield offset, batch.select(self.schema.names)
                offset += batch.num_rows


def _common_schema(files: Sequence[SourceFile]) -> pa.Schema:
    schemas: list[pa.Schema] = []
    for file in files:
        with opened(file) as parquet:
            schemas.append(parquet.schema_arrow)
    counts = [Counter(schema.names) for schema in schemas]
    names = [name for name in schemas[0].names if all(count[name] == 1 for count in counts)]
    fields: list[pa.Field] = []
    for name in names:
        alike = [pa.schema([schema.field(name)]) for schema in schemas]
        try:
            fields.append(pa.unify_schemas(alike, promote_options="permissive").field(0))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            kinds = ", ".join(dict.fromkeys(str(schema.field(0).type) for schema in alike))
            raise DataError(
                f"column {name!r} is of several types in the files: {kinds}",
                "write it alike in all files, or take the files one by one",
            ) from error
    return pa.schema(fields, schemas[0].metadata)
