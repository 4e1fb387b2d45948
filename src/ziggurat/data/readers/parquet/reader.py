"""Apache Parquet as a source: row groups of typed columns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.columnar.file import ColumnarFile, explained_reads
from ziggurat.data.readers.columnar.paths import ColumnPath, check_names
from ziggurat.data.readers.reader import CellsConfig
from ziggurat.data.readers.source_files import SourceFile

WHAT = "Parquet"


class ParquetSource(CellsConfig):
    """Apache Parquet."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    name: Literal["parquet"] = "parquet"


class ParquetColumns(ColumnarFile):
    """An open Parquet file."""

    def __init__(self, parquet: pq.ParquetFile) -> None:
        self._parquet = parquet
        self.schema = parquet.schema_arrow
        self.rows = parquet.metadata.num_rows
        self._of_no_values = {each.name for each in self.schema if _holds_no_values(each.type)}

    def groups(self) -> list[tuple[int, int]]:
        groups = map(self._parquet.metadata.row_group, range(self._parquet.metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]

    def row_bytes(self, paths: Sequence[ColumnPath] | None) -> int:
        if not self._parquet.metadata.num_row_groups:
            return 1
        group = self._parquet.metadata.row_group(0)
        if paths is None:
            return group.total_byte_size // max(group.num_rows, 1)
        needed = {path.column for path in paths}
        chunks = [group.column(index) for index in range(group.num_columns)]
        wanted = [
            chunk for chunk in chunks if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in needed)
        ]
        return sum(chunk.total_uncompressed_size for chunk in wanted) // max(group.num_rows, 1)

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        end = self._parquet.metadata.num_row_groups if end_group is None else end_group
        columns = None if paths is None else list(dict.fromkeys(path.stored for path in paths))
        wanted = self.schema.names if columns is None else columns
        unread = [name for name in wanted if name in self._of_no_values]
        if unread:
            columns = [name for name in wanted if name not in unread]
        for batch in self._parquet.iter_batches(rows, row_groups=list(range(first_group, end)), columns=columns):
            for column in batch.columns:
                if pt.is_dictionary(column.type):
                    _check_indices(column)
            yield self._with_nulls(batch, unread) if unread else batch

    def _with_nulls(self, batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Returns a batch with columns of nulls where the library cannot read the file's."""
        for name in names:
            batch = batch.append_column(self.schema.field(name), pa.nulls(batch.num_rows, self.schema.field(name).type))
        return batch if len(batch.schema) != len(self.schema) else batch.select(self.schema.names)


def _holds_no_values(kind: pa.DataType) -> bool:
    """Whether values are lists of a fixed length of 0, which the library writes but does not read."""
    return pt.is_fixed_size_list(kind) and kind.list_size == 0


def _check_indices(column: pa.DictionaryArray) -> None:
    """Validates that a dictionary has a value for every index, which the library leaves to the file.

    Raises:
        ArrowInvalid: it has not.
    """
    bounds = pc.min_max(column.indices).as_py()
    if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] < len(column.dictionary):
        raise pa.ArrowInvalid(f"index {bounds['max']} lies outside of a dictionary of {len(column.dictionary)} values")


@contextmanager
def open_parquet(file: SourceFile, dictionaries: Sequence[str] = ()) -> Generator[ParquetColumns]:
    """Opens ``file``; the columns in ``dictionaries`` are read as dictionaries.

    Raises:
        DataError: the file changed, may not be read, or is not a Parquet file.
    """
    with explained_reads(file, WHAT):
        file.check_unchanged()
        stored = file.open()
        parquet = pq.ParquetFile(stored)
        check_names(parquet.schema_arrow)
        present = [name for name in dictionaries if name in parquet.schema_arrow.names]
        if present:
            parquet = pq.ParquetFile(stored, metadata=parquet.metadata, read_dictionary=present)
    with stored, parquet:
        yield ParquetColumns(parquet)
