"""Complete rows of CSV files, with the exact text of each cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.schema import RawSchema, duplicates
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.blocks import RawBlock, arrow_type
from ziggurat.data.readers.csv.reader import CsvSource, parse_options
from ziggurat.data.readers.numbered_rows import LineNumbers
from ziggurat.data.readers.raw_rows import TextRows
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.records import has_lone_carriage_return


class CsvRows(TextRows):
    """Every column of every file, as text; a column that a file lacks is null in its rows.

    Args:
        files: the files to read.
        config: the format of the files.
        names: path -> the columns of that file.
        typed: columns to return in their declared types instead, taken from the blocks. If given, cells of the other
            columns that the source regards as missing are null.

    Raises:
        DataError: two columns of a file have the same name.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        config: CsvSource,
        names: Mapping[str, Sequence[str]],
        typed: RawSchema | None = None,
    ) -> None:
        super().__init__(files, config.records)
        self._names = {path: tuple(columns) for path, columns in names.items()}
        for path, columns in self._names.items():
            if repeated := duplicates(columns):
                raise DataError(f"{path}: the header names column {repeated[0]!r} twice", "rename one of them")
        self._config = config
        self._typed = {column.name: arrow_type(column) for column in typed.columns} if typed else {}
        all_names = dict.fromkeys(name for columns in self._names.values() for name in columns)
        self.schema = pa.schema([(name, self._typed.get(name, pa.string())) for name in all_names])

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        records, texts = self.records(block, kept, rejected)
        names = self._names[block.file]
        cells = split_cells(records, len(names), self._config)
        columns: list[pa.Array | pa.ChunkedArray] = []
        for field in self.schema:
            if field.name in self._typed:
                columns.append(block.table.column(field.name).take(pa.array(kept)).cast(field.type))
            elif field.name in names:
                columns.append(self._text(cells[names.index(field.name)], field.name, block, kept))
            else:
                columns.append(pa.nulls(len(kept), field.type))
        return pa.table(columns, schema=self.schema), texts

    def _text(self, cells: pa.Array, name: str, block: RawBlock, kept: LineNumbers) -> pa.Array:
        try:
            text = cells.cast(pa.string())
        except pa.ArrowInvalid:
            row = next(row for row, cell in enumerate(cells.to_pylist()) if not _is_utf8(cell))
            raise DataError(
                f"{block.file}, line {block.lines[kept][row]}, column {name!r}: not UTF-8: received "
                f"{shorten(cells[row].as_py())}",
                "save the file as UTF-8; from .csv to .csv, and from .tsv to .tsv, such text passes as it is",
            ) from None
        if not self._typed:
            return text
        missing = pc.is_in(text, value_set=self._config.cell_rules.missing)
        return pc.if_else(missing, pa.scalar(None, pa.string()), text)


def split_cells(records: pa.Array, width: int, config: CsvSource) -> list[pa.Array]:
    """Splits well-formed records into ``width`` columns of type ``binary``."""
    dialect = config.records
    data = join_text([records, pa.scalar(b"\n", pa.binary())])
    names = [str(place) for place in range(width)]
    plain = None if has_lone_carriage_return(data) else dialect.rewritten(data)
    if len(records) and plain is not None:
        read = pacsv.ReadOptions(column_names=names, use_threads=False, block_size=2**30)
        parse = parse_options(dialect)
        convert = pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()), null_values=[], strings_can_be_null=False
        )
        try:
            table = pacsv.read_csv(pa.BufferReader(plain), read, parse, convert)
        except pa.ArrowInvalid:
            table = None
        if table is not None and table.num_rows == len(records):
            return [column.combine_chunks() for column in table.columns]
    rows = [dialect.split(record) for record in records.to_pylist()]
    return [pa.array([row[place] for row in rows], pa.binary()) for place in range(width)]


def join_text(parts: Sequence[pa.Array | pa.Scalar]) -> bytes:
    """Joins arrays and scalars of text row by row, and concatenates all rows."""
    return b"".join(joined_buffers(parts))


def joined_buffers(parts: Sequence[pa.Array | pa.Scalar]) -> list[pa.Buffer]:
    """Returns the text of :func:`join_text` in pieces that are not copied."""
    separator = pa.scalar(b"", pa.binary())
    joined = pc.binary_join_element_wise(*parts, separator)
    chunks = joined.chunks if isinstance(joined, pa.ChunkedArray) else [joined]
    return [text_buffer(chunk) for chunk in chunks]


def text_buffer(array: pa.Array) -> pa.Buffer:
    """Returns the concatenated values of an array of type ``binary``, without null, as a view."""
    if not len(array):
        return pa.py_buffer(b"")
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return pa.py_buffer(b"") if data is None else data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def _is_utf8(cell: bytes) -> bool:
    try:
        cell.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
