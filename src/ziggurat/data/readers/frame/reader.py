"""Reads an Arrow table by the rules of columnar files; ids and rows are those of a Parquet file of the table."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pydantic
from pyarrow import ipc

from ziggurat.core.errors import DataError
from ziggurat.data.readers.columnar.file import ColumnarFile, estimated_row_bytes
from ziggurat.data.readers.columnar.paths import ColumnPath
from ziggurat.data.readers.frame.columns import Refusal
from ziggurat.data.readers.frame.table import NAME, FrameTable, check_names, frame_table
from ziggurat.data.readers.reader import CellsConfig
from ziggurat.data.readers.source_files import SourceFile

WHAT = "table in memory"
_GROUP_ROWS = 2**17


class FrameSource(CellsConfig):
    """Rows in memory, which are passed to ``ziggurat.prepare`` or ``ziggurat.train`` with the experiment."""

    SUFFIXES: ClassVar[tuple[str, ...]] = ()

    name: Literal["frame"] = "frame"
    files: list[str] = pydantic.Field(default=[])
    """None: the rows are in memory."""


class FrameFile(SourceFile):
    """A table in memory in place of a file; its modification time is a digest of its content."""

    def check_unchanged(self) -> None:
        """Does nothing: Arrow tables do not change."""


class TableColumns(ColumnarFile):
    """An Arrow table."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema, self.rows = table.schema, table.num_rows

    def groups(self) -> list[tuple[int, int]]:
        rows, size = self._table.num_rows, self._table.nbytes
        sizes = [min(_GROUP_ROWS, rows - start) for start in range(0, rows, _GROUP_ROWS)]
        return [(count, size * count // rows) for count in sizes]

    def row_bytes(self, paths: Sequence[ColumnPath] | None) -> int:
        names = self.schema.names if paths is None else [path.column for path in paths]
        return estimated_row_bytes(self.schema.field(name).type for name in names)

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        table = self._table if paths is None else self._table.select(list(dict.fromkeys(p.column for p in paths)))
        end = table.num_rows if end_group is None else min(end_group * _GROUP_ROWS, table.num_rows)
        for start in range(first_group * _GROUP_ROWS, end, rows):
            part = table.slice(start, min(rows, end - start)).combine_chunks()
            yield from part.to_batches()


@dataclass(frozen=True, slots=True)
class Frame:
    """A table in memory as a file.

    Attributes:
        table: the rows.
        file: a name, and a digest of the rows.
        refused: the columns of which no table can be made, with the reasons.
    """

    table: pa.Table
    file: FrameFile
    refused: Mapping[str, Refusal]

    @classmethod
    def of(cls, rows: Any) -> Frame:
        """Makes one of a data frame.

        Raises:
            DataError: no table can be made of it, or it has no rows.
        """
        found = frame_table(rows)
        table = found.table
        check_names(table.column_names)
        if not table.num_rows:
            raise DataError(f"{NAME}: holds no rows", "pass a frame with at least one row")
        file = FrameFile(Path(NAME), NAME, max(table.nbytes, 1), int(_digest(table)[:15], 16))
        return cls(table, file, found.refused)

    def check(self, names: Iterable[str]) -> None:
        """Checks that a table can be made of these columns, or of those that these paths begin with.

        Raises:
            DataError: none can be made of one; the message says what it holds.
        """
        FrameTable(self.table, self.refused).check(names)

    @contextmanager
    def open(self, file: SourceFile, dictionaries: Sequence[str] = ()) -> Generator[TableColumns]:
        """Opens the table in place of ``file``."""
        yield TableColumns(self.table)


def _digest(table: pa.Table) -> str:
    """Returns a digest of names, types and values."""
    sink = _Hash()
    with ipc.new_stream(pa.PythonFile(sink, "w"), table.schema.remove_metadata()) as writer:
        for start in range(0, table.num_rows, _GROUP_ROWS):
            writer.write_table(table.slice(start, _GROUP_ROWS).combine_chunks().replace_schema_metadata(None))
    return sink.digest.hexdigest()


class _Hash:
    """A writable stream that keeps nothing but a digest."""

    closed = False

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return len(data)

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
