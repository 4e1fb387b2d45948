"""CSV and TSV files, compressed or not.

Text is parsed in one of three ways, each the fallback of the previous one:

1. pyarrow parses directly into the declared types (about 300 MB/s per core);
2. pyarrow splits the text into cells, and :mod:`ziggurat.data.readers.cells.text` converts them and reports bad ones;
3. Python splits records one by one, which handles ragged rows, stray quotes and carriage returns and reports each bad
   row.
"""

from __future__ import annotations

from collections.abc import Callable
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
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.csv.header import read_layout
from ziggurat.data.readers.reader import CellsConfig, TextConfig, TextParser
from ziggurat.data.readers.rejection_reasons import as_text, rejection_reason
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.records import RecordRules, Records, has_lone_carriage_return

WRONG_WIDTH = "wrong number of columns"

WHITESPACE = "whitespace"
"""The delimiter that means runs of blanks and tabs."""

_LONGEST_DELIMITER = 16
_PARSE_BYTES = 2**20
"""Bytes that pyarrow parses at a time within a block: small enough for the processor's second-level cache."""


class CsvSource(TextConfig, CellsConfig):
    """Delimited text: CSV, TSV and similar formats."""

    SUFFIXES: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".txt", ".tab", ".data", ".inter", ".user", ".item")

    NEWER: ClassVar[frozenset[str]] = (
        TextConfig.NEWER | CellsConfig.NEWER | {"skip_blanks", "quotes", "escape", "comment", "skip_lines"}
    )

    name: Literal["csv"] = "csv"
    delimiter: str = ","
    """What stands between cells: one character, such as "\\t" or "\\x01", several, such as "::", or ``whitespace``,
    which means runs of blanks and tabs."""
    header: bool = True
    """Whether the first line names the columns."""
    columns: list[str] | None = None
    """Names of all columns, in file order. Required without a header; with one, these names replace it, and may name
    one column that the header does not."""
    newlines_in_values: bool = False
    """Whether quoted values may contain line ends. Quotes inside such values must be doubled, or escaped."""
    skip_blanks: bool = False
    """Drop blanks beside delimiters, as in ``1, 2``; else they belong to the values and to the names of columns."""
    quotes: bool = True
    """Whether double quotes enclose values; if not, they are ordinary characters."""
    escape: str | None = None
    """The character, often a backslash, before a quote, a delimiter, a line end or itself that is part of a value.
    Before any other character it stands for itself."""
    comment: str | None = None
    """Lines that begin with this are ignored."""
    skip_lines: int = pydantic.Field(default=0, ge=0)
    """Number of lines before the header, or before the first row, to ignore."""

    @pydantic.field_validator("delimiter")
    @classmethod
    def _separates(cls, value: str) -> str:
        if not value or set(value) & set('"\r\n\0') or len(value.encode()) > _LONGEST_DELIMITER:
            raise ValueError(
                "the delimiter is one character or several, without quotes, line ends and NUL, or `whitespace`"
            )
        return value

    @pydantic.field_validator("escape")
    @classmethod
    def _escapes(cls, value: str | None) -> str | None:
        if value is not None and (len(value.encode()) != 1 or value in '"\r\n\0 \t'):
            raise ValueError(
                "the escape is one ASCII character, no quote, blank or line end; quotes are doubled anyway"
            )
        return value

    @pydantic.field_validator("comment")
    @classmethod
    def _begins_lines(cls, value: str | None) -> str | None:
        if value is not None and (not value or set(value) & set('"\r\n\0')):
            raise ValueError("`comment` is the text at the beginning of comment lines, such as '#'; or null")
        return value

    @pydantic.model_validator(mode="after")
    def _named(self) -> CsvSource:
        if not self.header and self.columns is None:
            raise ValueError("without a header the columns need names: list them under `columns`")
        repeated = duplicates(self.columns or [])
        if repeated:
            raise ValueError(f"columns named twice: {', '.join(repeated)}")
        if self.escape is not None and self.escape in self.delimiter and self.delimiter != WHITESPACE:
            raise ValueError(f"the escape {self.escape!r} is part of the delimiter {self.delimiter!r}")
        if self.newlines_in_values and not self.quotes and self.escape is None:
            raise ValueError("with `quotes: false` and no `escape`, a value cannot hold a line end")
        if self.skip_blanks and self.delimiter == " ":
            raise ValueError("the delimiter is a blank itself: for runs of blanks set `delimiter: whitespace`")
        return self

    @property
    def records(self) -> Dialect:
        return Dialect(
            delimiter=b"" if self.delimiter == WHITESPACE else self.delimiter.encode(),
            newlines_in_values=self.newlines_in_values,
            quotes=self.quotes,
            escape=(self.escape or "").encode(),
            skip_blanks=self.skip_blanks,
            comment=(self.comment or "").encode(),
            skip_lines=self.skip_lines,
        )


class CsvParser(TextParser):
    """Parses one file of a :class:`CsvSource`; see :class:`TextParser`.

    Raises:
        DataError: the file's header or first rows do not hold the columns of ``schema``.
    """

    def __init__(self, file: SourceFile, config: CsvSource, schema: RawSchema) -> None:
        layout = read_layout(file, config.records, config.header, config.columns, schema.names)
        self.records: RecordRules = config.records
        self._dialect = config.records
        self.first_row = Position(0, layout.offset, layout.line)
        self._file = str(file.path)
        self._layout = layout
        self._schema = schema
        self._rules = config.cell_rules
        self._split = self._dialect.split
        self._encoding = file.encoding
        self._read = pacsv.ReadOptions(column_names=layout.unique_names, use_threads=False, block_size=_PARSE_BYTES)
        self._read_whole = pacsv.ReadOptions(column_names=layout.unique_names, use_threads=False, block_size=2**30)
        self._format = parse_options(self._dialect)
        self._own = {c.name for c in schema.columns if _needs_own_conversion(c, config.number_rules)}
        self._typed = self._conversion(
            {c.name: pa.string() if c.name in self._own else arrow_type(c) for c in schema.columns}
        )
        self._raw = self._conversion({column.name: pa.binary() for column in schema.columns})

    def parse(self, data: bytes, line: int) -> Parsed | None:
        plain = None if has_lone_carriage_return(data) else self._dialect.rewritten(data)
        if plain is None or not self.records.quotes_close(plain):
            return None  # pyarrow would end a record at a lone CR, and treat the text after an open quote as a value
        return self._parse_typed(data, plain, line) or self._parse_cells(data, plain, line)

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

    def _parse_typed(self, data: bytes, plain: bytes, line: int) -> Parsed | None:
        table = self._read_csv(plain, self._read, self._typed)
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

    def _parse_cells(self, data: bytes, plain: bytes, line: int) -> Parsed | None:
        table = self._read_csv(plain, self._read_whole, self._raw)
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

    def _read_csv(self, plain: bytes, read: pacsv.ReadOptions, convert: pacsv.ConvertOptions) -> pa.Table | None:
        try:
            return pacsv.read_csv(pa.BufferReader(plain), read, self._format, convert)
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
            null_values=self._rules.missing_texts if typed else [],
            strings_can_be_null=typed,
            decimal_point=self._rules.numbers.decimal,
        )

    def _wrong_width_reason(self, width: int) -> str:
        return rejection_reason(
            WRONG_WIDTH,
            f"received {width}, {self._layout.width} are expected",
            f"correct the row; {self._inside_values()}",
        )

    def _inside_values(self) -> str:
        """Says how a value holds the delimiter."""
        between = repr(self._dialect.delimiter.decode()) if self._dialect.delimiter else "a blank"
        ways = ["quoted"] * self.records.quotes + [f"escaped by {self._dialect.escape.decode()!r}"] * bool(
            self._dialect.escape
        )
        return f"a value that holds {between} has to be {' or '.join(ways)}" if ways else f"no value may hold {between}"


def parse_options(
    dialect: Dialect, other_widths: Callable[[pacsv.InvalidRow], str] | None = None
) -> pacsv.ParseOptions:
    """Returns how pyarrow parses text that :meth:`Dialect.rewritten` returns; ``other_widths`` may skip ragged rows."""
    return pacsv.ParseOptions(
        delimiter=dialect.parsed_delimiter.decode(),
        quote_char='"' if dialect.parsed_quotes else False,
        newlines_in_values=dialect.newlines_in_values,
        invalid_row_handler=other_widths,
    )


def _needs_own_conversion(column: RawColumn, numbers: NumberRules) -> bool:
    """Whether pyarrow reads the column as text, which :func:`convert_text` then converts."""
    is_number = column.type in {ValueType.INTEGER, ValueType.FLOAT}
    return column.many or column.type is ValueType.TIME or (is_number and numbers.has_signs)
