"""Arrow IPC files (Feather version 2 among them) and streams as a source: record batches of typed columns.

Files on a disk are memory-mapped, so a large record batch that is not compressed is read slice by slice. What a file
says about its buffers is validated before they are read.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.types as pt
from pyarrow import ipc

from ziggurat.core.errors import DataError
from ziggurat.data.readers.columnar.file import (
    FREE_BYTES,
    MOST_EXPANSION,
    ColumnarFile,
    estimated_row_bytes,
    explained_reads,
)
from ziggurat.data.readers.columnar.paths import ColumnPath, check_names
from ziggurat.data.readers.columnar.reader import bytes_type
from ziggurat.data.readers.reader import CellsConfig
from ziggurat.data.readers.source_files import SourceFile

WHAT = "Arrow IPC"
FILE_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"


class ArrowSource(CellsConfig):
    """Arrow IPC files or streams, and Feather files of version 2."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".arrow", ".ipc", ".feather", ".arrows")

    name: Literal["arrow"] = "arrow"


class _ArrowColumns(ColumnarFile):
    """What files and streams share."""

    def __init__(self, file: SourceFile, mapped: pa.NativeFile, schema: pa.Schema) -> None:
        self._file, self._mapped, self.schema = file, mapped, schema
        check_names(schema)

    def row_bytes(self, paths: Sequence[ColumnPath] | None) -> int:
        names = self.schema.names if paths is None else [path.column for path in paths]
        return estimated_row_bytes(self.schema.field(name).type for name in names if self.schema.names.count(name) == 1)

    def _options(self, paths: Sequence[ColumnPath] | None) -> ipc.IpcReadOptions:
        if paths is None:
            return ipc.IpcReadOptions()
        used = {self.schema.get_field_index(path.column) for path in paths}
        return ipc.IpcReadOptions(included_fields=sorted(used))

    def _slices(self, batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
        """Validates a batch and yields it in slices."""
        if batch.nbytes > max(FREE_BYTES, MOST_EXPANSION * self._file.size_bytes):
            raise DataError(
                f"{self._file.path}: its {self._file.size_bytes:,} bytes become {batch.nbytes:,} in one record batch; "
                f"at most {MOST_EXPANSION} times as many are read",
                "if its content is right, write it without compression",
            )
        for column in batch.columns:
            _validate(column)
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


class ArrowFile(_ArrowColumns):
    """An open Arrow IPC file: its record batches can be read in any order."""

    def __init__(self, file: SourceFile, mapped: pa.NativeFile) -> None:
        reader = ipc.open_file(mapped)
        super().__init__(file, mapped, reader.schema)
        self._batches = reader.num_record_batches
        self.rows = self._count()
        self._groups: list[tuple[int, int]] | None = None

    def _count(self) -> int:
        if not self._batches:
            return 0
        if self._file.remote is not None:
            return sum(self._rows_of_batches())
        import pyarrow.dataset  # here, because it imports pandas, which takes a second

        return pyarrow.dataset.dataset(str(self._file.path), format="ipc").count_rows()

    def _rows_of_batches(self) -> list[int]:
        narrowest = min(range(len(self.schema)), key=lambda index: estimated_row_bytes([self.schema.field(index).type]))
        reader = ipc.open_file(self._mapped, options=ipc.IpcReadOptions(included_fields=[narrowest]))
        return [reader.get_batch(number).num_rows for number in range(self._batches)]

    def groups(self) -> list[tuple[int, int]]:
        if self._groups is None:
            rows = self._rows_of_batches()
            self._groups = [(count, self._file.size_bytes * count // max(self.rows or 0, 1)) for count in rows]
        return self._groups

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        reader = ipc.open_file(self._mapped, options=self._options(paths))
        for number in range(first_group, self._batches if end_group is None else end_group):
            yield from self._slices(reader.get_batch(number), rows)


class ArrowStream(_ArrowColumns):
    """An open Arrow IPC stream, which is read from its beginning."""

    rows = None

    def __init__(self, file: SourceFile, mapped: pa.NativeFile) -> None:
        super().__init__(file, mapped, ipc.open_stream(mapped).schema)

    def groups(self) -> list[tuple[int, int]]:
        return []

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        self._mapped.seek(0)
        for batch in ipc.open_stream(self._mapped, options=self._options(paths)):
            yield from self._slices(batch, rows)

    def stored_bytes(self, stop: int, size: int) -> int:
        return min(self._mapped.tell(), size)


@contextmanager
def open_arrow(file: SourceFile, dictionaries: Sequence[str] = ()) -> Generator[_ArrowColumns]:
    """Opens ``file``; columns have the types that they have in it, whatever ``dictionaries`` names.

    Raises:
        DataError: the file changed, may not be read, or is neither an Arrow IPC file nor a stream.
    """
    with explained_reads(file, WHAT):
        file.check_unchanged()
        mapped = pa.memory_map(str(file.path)) if file.remote is None else file.open()
    with mapped:
        with explained_reads(file, WHAT):
            magic = mapped.read(len(FILE_MAGIC))
            mapped.seek(0)
            if magic.startswith(_FEATHER_1):
                raise DataError(
                    f"{file.path}: is a Feather file of version 1, which is not read",
                    "write it again as version 2: pyarrow.feather.write_feather(table, path)",
                )
            opened = ArrowFile(file, mapped) if magic == FILE_MAGIC else ArrowStream(file, mapped)
        yield opened


def _validate(column: pa.Array) -> None:
    """Validates the buffers of an array at any depth; whether text is UTF-8 is checked row by row, later.

    Raises:
        ArrowInvalid: a buffer is too short, or an offset or index lies outside of its buffer.
    """
    checked: Any = column
    if pt.is_nested(column.type) or not pt.is_dictionary(column.type):
        checked = column.view(bytes_type(column.type))
    checked.validate(full=True)
