"""What the rows of a table or a query have in common, whichever database they are in."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.data.readers.columnar.file import ColumnarFile, estimated_row_bytes
from ziggurat.data.readers.columnar.paths import ColumnPath
from ziggurat.data.readers.source_files import SourceFile

GROUP_ROWS = 2**17
"""Rows of a group, which can be read without those before it."""


class DatabaseTable(ColumnarFile):
    """The rows of a table or a query of a database file, in groups of :data:`GROUP_ROWS`."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def groups(self) -> list[tuple[int, int]]:
        total = self.rows or 0
        sizes = [min(GROUP_ROWS, total - start) for start in range(0, total, GROUP_ROWS)]
        return [(rows, self._file.size_bytes * rows // total) for rows in sizes]

    def row_bytes(self, paths: Sequence[ColumnPath] | None) -> int:
        return estimated_row_bytes(self.schema.field(name).type for name in self._columns(paths))

    def _columns(self, paths: Sequence[ColumnPath] | None) -> list[str]:
        """Returns the columns that these paths lead into, each once; None: all columns."""
        return self.schema.names if paths is None else list(dict.fromkeys(path.column for path in paths))

    @staticmethod
    def _span(first_group: int, end_group: int | None) -> tuple[int, int | None]:
        """Returns the first row of some groups, and the number of their rows; None: to the end."""
        return first_group * GROUP_ROWS, None if end_group is None else (end_group - first_group) * GROUP_ROWS
