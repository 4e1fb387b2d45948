"""CSV and TSV files, compressed or not.

Text is parsed in one of three ways, each the fallback of the previous one:

1. pyarrow parses directly into the declared types (about 300 MB/s per core);
2. pyarrow splits the text into cells, and :mod:`ziggurat.data.readers.cells.text` converts them and reports bad ones;
3. Python splits records one by one, which handles ragged rows, stray quotes and carriage returns and reports each bad
   row.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pydantic

from ziggurat.core.schema import RawColumn, RawSchema, ValueType, duplicates
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.assemble import Parsed, assemble
from ziggurat.data.readers.blocks import BadRow, Position, arrow_type
from ziggurat.data.readers.cells.number_rules import NumberRules
from ziggurat.data.readers.cells.text import Converted, convert_text
from ziggurat.data.readers.csv.header import read_layout
from ziggurat.data.readers.csv.record_split import RecordSplitter
from ziggurat.data.readers.reader import CellsConfig, TextParser
from ziggurat.data.readers.rejection_reasons import as_text, rejection_reason
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.records import RecordRules, Records, has_lone_carriage_return

WRONG_WIDTH = "wrong number of columns"

_PARSE_BYTES = 2**20
"""Bytes that pyarrow parses at a time within a block: small enough for the processor's second-level cache."""


class CsvSource(CellsConfig):
    """Delimited text: CSV, TSV and similar formats."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".txt", ".tab", ".data", ".inter", ".user", ".item")

    name: Literal["csv"] = "csv"
    delimiter: str = ","
    """The single character between cells; a tab is "\\t"."""
    header: bool = True
    """Whether the first line names the columns."""
    columns: list[str] | None = None
    """Names of all columns, in file order. Required without a header; with one, these names replace it."""
    newlines_in_values: bool = False
    """Whether quoted values may contain line ends. Quotes inside such values must be doubled."""

    @pydantic.field_validator("delimiter")
    @classmethod
    def _one_byte(cls, value: str) -> str:
        if len(value.encode()) != 1 or value in '"\r\n':
            raise ValueError("the delimiter is one ASCII character, neither a quote nor a line end")
        return value

    @pydantic.model_validator(mode="after")
    def _named(self) -> CsvSource:
        if not self.header and self.columns is None:
            raise ValueError("without a header the columns need names: list them under `columns`")
        repeated = duplicates(self.columns or [])
        if repeated:
            raise ValueError(f"columns named twice: {', '.join(repeated)}")
        return self

    @property
    def records(self) -> RecordRules:
        return RecordRules(self.delimiter.encode(), self.newlines_in_values)


class CsvParser(TextParser):
    """Parses one file of a :class:`CsvSource`; see :class:`TextParser`.

    Raises:
        DataError: the file's header or first rows do not hold the columns of ``schema``.
    """

    def __init__(self, file: SourceFile, config: CsvSource, schema: RawSchema) -> None:
        layout = read_layout(file, config.records, config.header, config.columns, schema.names)
        self.records = config.records
        self.first_row = Position(0, layout.offset, layout.line)
        self._file = str(file.path)
        self._layout = layout
        self._schema = schema
        self._rules = config.cell_rules
        self._split = RecordSplitter(self.records.delimiter)
        self._read = pacsv.ReadOptions(column_names=layout.unique_names, use_threads=False, block_size=_PARSE_BYTES)
        self._read_whole = pacsv.ReadOptions(column_names=layout.unique_names, use_threads=False, block_size=2**30)
        self._format = pacsv.ParseOptions(delimiter=config.delimiter, newlines_in_values=config.newlines_in_values)
        self._own = {c.name for c in schema.columns if _needs_own_conversion(c, config.number_rules)}
        self._typed = self._conversion(
            {c.name: pa.string() if c.name in self._own else arrow_type(c) for c in schema.columns}
        )
        self._raw = self._conversion({column.name: pa.binary() for column in schema.columns})

    def parse(self, data: bytes, line: int) -> Parsed | None:
        if has_lone_carriage_return(data) or not self.records.quotes_close(data):
            return None  # pyarrow would end a record at a lone CR, and treat the text after an open quote as a value
        return self._parse_typed(data, line) or self._parse_cells(data, line)

    def parse_slowly(self, data: bytes, line: int) -> Parsed:
        records = Records.of(data, line, self.records)
        rows: list[int] = []
        cells: list[list[bytes]] = []
        bad: list[BadRow] = []
        for row in range(len(records)):
            split = self._split(records[row])
            if isinstance(split, list) and len(split) == self._layout.width:
                rows.append(row)
                cells.append(split)
            else:
                reason = self._wrong_width_reason(len(split)) if isinstance(split, list) else split
                bad.append(BadRow(self._file, int(records.lines[row]), None, reason, as_text(records[row])))
        places = [self._layout.index(column.name) for column in self._schema.columns]
        columns = [
            convert_text(pa.array([row[place] for row in cells], pa.binary()), column, self._rules)
            for column, place in zip(self._schema.columns, places, strict=True)
        ]
        text_of = lambda row: as_text(records[rows[row]])  # noqa: E731
        parsed = assemble(self._schema, columns, records.lines[rows], self._file, text_of)
        return Parsed(parsed.table, parsed.lines, sorted([*bad, *parsed.bad], key=lambda row: row.line))

    def _parse_typed(self, data: bytes, line: int) -> Parsed | None:
        table = self._read_csv(data, self._read, self._typed)
        lines = None if table is None else self._lines(data, line, table.num_rows)
        if table is None or lines is None:
            return None
        columns: list[pa.ChunkedArray] = []
        for column in self._schema.columns:
            values = self._checked(table.column(column.name), column)
            if values is None or (column.required and values.null_count):
                return None
            columns.append(values)
        return Parsed(pa.table(columns, names=list(self._schema.names)), lines)

    def _checked(self, values: pa.ChunkedArray, column: RawColumn) -> pa.ChunkedArray | None:
        """Completes the conversion of a column that pyarrow parsed; returns None if a cell is irregular."""
        if column.name in self._own:
            converted = [convert_text(chunk, column, self._rules) for chunk in values.chunks]
            if (column.many and column.required) or any(part.bad for part in converted):
                return None
            return pa.chunked_array([part.values for part in converted], arrow_type(column))
        if column.type is ValueType.FLOAT and pc.all(pc.is_finite(values)).as_py() is False:
            return None
        return values

    def _parse_cells(self, data: bytes, line: int) -> Parsed | None:
        table = self._read_csv(data, self._read_whole, self._raw)
        if table is None:
            return None
        records = Records.of(data, line, self.records)
        if len(records) != table.num_rows:
            return None
        columns: list[Converted] = []
        for column in self._schema.columns:
            cells = table.column(column.name).combine_chunks()
            columns.append(convert_text(cells, column, self._rules))
        text_of = lambda row: as_text(records[row])  # noqa: E731
        return assemble(self._schema, columns, records.lines, self._file, text_of)

    def _read_csv(self, data: bytes, read: pacsv.ReadOptions, convert: pacsv.ConvertOptions) -> pa.Table | None:
        try:
            return pacsv.read_csv(pa.BufferReader(data), read, self._format, convert)
        except pa.ArrowInvalid:
            return None

    def _lines(self, data: bytes, line: int, rows: int) -> npt.NDArray[np.int64] | None:
        """Returns the line number of each parsed row; None if pyarrow split the text into other records."""
        ended = data.count(b"\n") + (not data.endswith(b"\n"))
        if ended == rows:
            return np.arange(line, line + rows, dtype=np.int64)
        records = Records.of(data, line, self.records)
        return records.lines if len(records) == rows else None

    def _conversion(self, types: dict[str, pa.DataType]) -> pacsv.ConvertOptions:
        typed = any(not pa.types.is_binary(kind) for kind in types.values())
        return pacsv.ConvertOptions(
            column_types=types,
            include_columns=list(types),
            null_values=self._rules.missing.to_pylist() if typed else [],
            strings_can_be_null=typed,
            decimal_point=self._rules.numbers.decimal,
        )

    def _wrong_width_reason(self, width: int) -> str:
        return rejection_reason(
            WRONG_WIDTH,
            f"received {width}, {self._layout.width} are expected",
            f"correct the row; a value that holds {self.records.delimiter.decode()!r} has to be quoted",
        )


def _needs_own_conversion(column: RawColumn, numbers: NumberRules) -> bool:
    """Whether pyarrow reads the column as text, which :func:`convert_text` then converts."""
    is_number = column.type in {ValueType.INTEGER, ValueType.FLOAT}
    return column.many or column.type is ValueType.TIME or (is_number and numbers.has_signs)
