"""The interface of an open columnar file, and what is checked before its rows are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import pyarrow as pa
import pyarrow.types as pt

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.columnar.convert import mismatch
from ziggurat.data.readers.columnar.paths import ColumnPath, is_list, resolve, storage_type
from ziggurat.data.readers.source_files import SourceFile, no_permission

LEAST_CELL_BYTES = 8
MOST_EXPANSION, FREE_BYTES = 500, 256 * 2**20
"""A file whose cells would become this many times as large, and more than these bytes, is not read. Columns of few
values become some 60 times as large."""


class ColumnarFile(ABC):
    """An open file of typed columns, whose rows are in groups that can be read by themselves.

    Attributes:
        schema: all columns.
        rows: the number of rows; None if that shows only when they are read.
    """

    schema: pa.Schema
    rows: int | None

    @abstractmethod
    def groups(self) -> list[tuple[int, int]]:
        """Returns rows and decoded bytes of each group; empty if the file can only be read from its beginning."""

    @abstractmethod
    def row_bytes(self, paths: Sequence[ColumnPath] | None) -> int:
        """Returns an estimate of the decoded bytes of a row of these columns; None: of all columns."""

    @abstractmethod
    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows from one group to another in batches of at most ``rows``.

        Args:
            paths: what is needed; other columns may be left out. None: all columns.
            rows: largest number of rows of a batch.
            first_group: the group to begin with; 0 if there are no groups.
            end_group: the group before which to stop; default: the end of the file.
        """

    def stored_bytes(self, stop: int, size: int) -> int:
        """Returns how many bytes of a file of ``size`` bytes are read when row ``stop`` is reached, for progress."""
        return size * stop // self.rows if self.rows else size


OpenColumnar = Callable[[SourceFile, Sequence[str]], AbstractContextManager[ColumnarFile]]
"""Opens a file; the named columns may be returned as dictionaries.

Raises a DataError for a file that changed, may not be read, or is damaged or of another format."""


@contextmanager
def explained_reads(file: SourceFile, what: str) -> Generator[None]:
    """Turns a failure to read ``file``, of the format ``what``, into an error that names it and gives a hint."""
    if file.archive is not None:
        raise DataError(
            f"{file.path}: is a file in a zip archive, of which only text is read", f"unpack it: unzip '{file.archive}'"
        )
    try:
        yield
    except PermissionError as error:
        raise no_permission(file.path) from error
    except (pa.ArrowException, OSError, NotImplementedError, UnicodeDecodeError) as error:
        file.check_unchanged()
        message = " ".join(str(error).split())[:300]
        raise DataError(
            f"{file.path}: truncated, corrupt or no {what} file ({message})",
            "copy or write the file again; if it is text, name that format as the source",
        ) from error


def resolve_columns(file: SourceFile, opened: ColumnarFile, schema: RawSchema) -> dict[str, ColumnPath]:
    """Returns the path of each source column of ``schema``.

    Raises:
        DataError: the file holds no rows, declares far more than it has bytes, or lacks a column, or a column cannot be
            converted to its declared type.
    """
    if opened.rows == 0:
        raise DataError(f"{file.path}: the file holds no rows", "remove it from `files`, or write it anew")
    check_expansion(file, opened.rows, len(schema.columns))
    paths: dict[str, ColumnPath] = {}
    for column in schema.columns:
        name = column.source
        if name not in paths:
            paths[name] = _resolved(file, opened.schema, name)
            problem = mismatch(paths[name].type, column)
            if problem is not None:
                raise DataError(f"{file.path}, column {name!r}: {problem[0]}", problem[1])
    return paths


def check_expansion(file: SourceFile, rows: int | None, columns: int) -> None:
    """Refuses a file that declares far more rows than it has bytes.

    Raises:
        DataError: it does.
    """
    cells_bytes = (rows or 0) * LEAST_CELL_BYTES * columns
    if cells_bytes > max(FREE_BYTES, MOST_EXPANSION * file.size_bytes):
        raise DataError(
            f"{file.path}: its {file.size_bytes:,} bytes declare {rows:,} rows, which would become {cells_bytes:,} "
            f"bytes; at most {MOST_EXPANSION} times as many are read",
            "if its content is right, write it without compression and dictionaries",
        )


def _resolved(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    path = resolve(schema, name)
    if path is not None:
        return path
    repeated = len(schema.get_all_field_indices(name))
    if repeated > 1:
        raise DataError(f"{file.path}: holds column {name!r} {repeated} times", "rename all but one")
    close = nearest(name, schema.names)
    shown = ", ".join(schema.names[:20]) + (", …" if len(schema.names) > 20 else "")
    raise DataError(
        f"{file.path}: no column {name!r}; the file holds: {shown}",
        f"did you mean {close!r}?" if close else "correct the column's name",
    )


def estimated_row_bytes(kinds: Iterable[pa.DataType]) -> int:
    """Returns an estimate of the decoded bytes of a row of columns of these types."""
    return sum(map(_cell_bytes, kinds))


def _cell_bytes(kind: pa.DataType) -> int:
    kind = storage_type(kind)
    if pt.is_struct(kind):
        return sum(_cell_bytes(kind.field(index).type) for index in range(kind.num_fields))
    if pt.is_fixed_size_list(kind):
        return kind.list_size * _cell_bytes(kind.value_type)
    if is_list(kind):
        return _LIST_LENGTH * _cell_bytes(kind.value_type)
    if pt.is_map(kind):
        return _LIST_LENGTH * (_cell_bytes(kind.key_type) + _cell_bytes(kind.item_type))
    return max(kind.bit_width // 8, 1) if pt.is_primitive(kind) else _TEXT_BYTES


_LIST_LENGTH, _TEXT_BYTES = 8, 24
