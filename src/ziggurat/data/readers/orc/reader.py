"""Apache ORC as a source: stripes of typed columns."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.orc

from ziggurat.data.readers.columnar.file import (
    ColumnarFile,
    check_expansion,
    estimated_row_bytes,
    explained_reads,
)
from ziggurat.data.readers.columnar.paths import ColumnPath, check_names
from ziggurat.data.readers.orc.trial import check_reading
from ziggurat.data.readers.reader import CellsConfig
from ziggurat.data.readers.source_files import SourceFile

WHAT = "ORC"
MAGIC = b"ORC"


class OrcSource(CellsConfig):
    """Apache ORC."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".orc",)

    name: Literal["orc"] = "orc"


class OrcColumns(ColumnarFile):
    """An open ORC file. A stripe is read as a whole, because the library cannot read a part of one."""

    def __init__(self, file: SourceFile, orc: pyarrow.orc.ORCFile) -> None:
        self._file, self._orc = file, orc
        self.schema: pa.Schema = orc.schema
        check_names(self.schema)
        self.rows: int | None = orc.nrows
        self._groups: list[tuple[int, int]] | None = None
        check_expansion(file, self.rows, 1)

    def groups(self) -> list[tuple[int, int]]:
        if self._groups is None:
            narrowest = min(self.schema.names, key=lambda name: estimated_row_bytes([self.schema.field(name).type]))
            columns = [narrowest] if "." not in narrowest else None
            stripes = range(self._orc.nstripes)
            rows = [self._orc.read_stripe(number, columns=columns).num_rows for number in stripes]
            self._groups = [(count, self._file.size_bytes * count // max(self.rows or 0, 1)) for count in rows]
        return self._groups

    def row_bytes(self, paths: Sequence[ColumnPath] | None) -> int:
        names = self.schema.names if paths is None else [path.column for path in paths]
        return estimated_row_bytes(self.schema.field(name).type for name in names)

    def batches(
        self, paths: Sequence[ColumnPath] | None, rows: int, first_group: int = 0, end_group: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        columns = None if paths is None else list(dict.fromkeys(path.column for path in paths))
        if columns is not None and any("." in name for name in columns):
            columns = None  # the library would look for a field
        for number in range(first_group, self._orc.nstripes if end_group is None else end_group):
            stripe = self._orc.read_stripe(number, columns=columns)
            for start in range(0, stripe.num_rows, rows):
                yield stripe.slice(start, rows)


@contextmanager
def open_orc(file: SourceFile, dictionaries: Sequence[str] = ()) -> Generator[OrcColumns]:
    """Opens ``file``; columns have the types that they have in it, whatever ``dictionaries`` names.

    Raises:
        DataError: the file changed, may not be read, is no ORC file, or crashes the library that reads it.
    """
    with explained_reads(file, WHAT):
        file.check_unchanged()
        check_reading(file)
        file.check_unchanged()
        stored = file.open()
    with stored:
        with explained_reads(file, WHAT):
            opened = OrcColumns(file, pyarrow.orc.ORCFile(stored))
        yield opened
