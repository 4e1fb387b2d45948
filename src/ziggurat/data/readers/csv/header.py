"""Finds the columns of a delimited text file, and diagnoses why a column is missing."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from dataclasses import dataclass

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.schema import duplicates
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.csv.record_split import RecordSplitter
from ziggurat.data.readers.rejection_reasons import as_text
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import cut_blocks, empty_text, first_record_at
from ziggurat.data.readers.text.records import Records

HEAD_BYTES = 64 * 2**10
_SAMPLE_RECORDS = 100
_SKIP_TITLES = "if it is a title, set `skip_lines` to the number of lines above the header; else "
_DELIMITERS = (",", "\t", ";", "|", "::", "\x01", " ", ":")


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """The columns of one file.

    Attributes:
        names: the names of all columns of the file.
        needed: the columns to be read.
        offset: byte offset in the (decompressed) text at which the rows begin.
        line: line number at which the rows begin.
    """

    names: tuple[str, ...]
    needed: tuple[str, ...]
    offset: int
    line: int

    @property
    def width(self) -> int:
        """Number of cells in a row."""
        return len(self.names)

    def index(self, name: str) -> int:
        """Returns the index of a needed column in a row."""
        return self.names.index(name)

    @property
    def unique_names(self) -> list[str]:
        """``names`` with unique placeholders for columns that are not needed, whose names the file may repeat."""
        needed = frozenset(self.needed)
        return [name if name in needed else f"\0{place}" for place, name in enumerate(self.names)]


def read_layout(
    file: SourceFile, rules: Dialect, header: bool, columns: Sequence[str] | None, needed: tuple[str, ...]
) -> CsvLayout:
    """Reads the column layout from the head of ``file``.

    Args:
        file: the file.
        rules: the declared dialect.
        header: whether the first non-empty line names the columns.
        columns: names that replace those of the header; required without a header.
        needed: the columns to find.

    Raises:
        DataError: the file holds only a header, is not UTF-8 or not CSV, has another delimiter, or a needed column is
            missing or repeated.
    """
    head = _Head(file, rules)
    found = head.header() if header else tuple(columns or ())
    if columns is not None:
        head.check_renamed(found, columns)
    names = found if columns is None else tuple(columns)
    head.check_columns(names, needed, "header" if columns is None else "`columns` of the source")
    head.check_rows(len(names), first=1 if header else 0)
    offset, line = head.after_header() if header else (head.first.offset, head.first.line)
    return CsvLayout(names, needed, offset, line)


@dataclass(frozen=True, slots=True)
class FirstRecords:
    """The first records of a file.

    Attributes:
        records: the records; without those that are comments or lines to skip.
        offset: offset of their text, after a byte order mark.
        line: number of the first line of their text.
        whole_file: whether the file ends with them.
    """

    records: Records
    offset: int
    line: int
    whole_file: bool


def read_first_records(file: SourceFile, rules: Dialect, limit_bytes: int = HEAD_BYTES) -> FirstRecords:
    """Reads about ``limit_bytes`` of records from the start of ``file``.

    Raises:
        DataError: the file cannot be read, or holds no text.
    """
    start, line = first_record_at(file, rules)
    for block in cut_blocks(file, start, limit_bytes, rules.last_record_end):
        bom_bytes = len(codecs.BOM_UTF8) if start == 0 and block.data.startswith(codecs.BOM_UTF8) else 0
        records = Records.of(block.data[bom_bytes:], line, rules)
        return FirstRecords(records, start + bom_bytes, line, block.last)
    raise empty_text(file)


class _Head:
    """The first records of a file, and checks of them that raise errors."""

    def __init__(self, file: SourceFile, rules: Dialect) -> None:
        self.path = file.path
        self.encoding = file.encoding
        self.rules = rules
        self.first = read_first_records(file, rules)
        self.whole_file = self.first.whole_file
        self.rows = self.first.records
        self.data = self.rows.data
        if self.data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{self.path}: the file is UTF-16", "set `encoding: utf-16` on the source")
        if not len(self.rows):
            raise DataError(f"{self.path}: the file holds no rows, only empty lines", "remove it from `files`")

    def header(self) -> tuple[str, ...]:
        """Returns the names in the first line."""
        first = self.rows[0]
        if b"\r" in first:
            raise DataError(f"{self.path}: lines end in carriage returns only", "set `line_ends: cr` on the source")
        try:
            first.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path}, line {self.rows.lines[0]}: the header is not {self.encoding.upper()} ({error.reason}, "
                f"byte {error.start})",
                "set the `encoding` of the source, such as cp1252 or shift_jis, which `ziggurat init` guesses; if the "
                "file is compressed, its name has to end in .gz, .zst, .bz2, .xz or .zip",
            ) from error
        return self._split(0)

    def check_renamed(self, found: Sequence[str], columns: Sequence[str]) -> None:
        """Validates that the header has as many columns as ``columns`` names, up to one that it does not name.

        R writes no name above the names of rows, and a delimiter at the end of a line begins a column without a name.
        """
        unnamed = len(columns) - len(found)
        allowed = (-1, 0, 1) if found and not found[-1] else (0, 1)
        if unnamed not in allowed or (unnamed and not self._has_row_of(len(columns))):
            raise self._width_delimiter_error(0, len(columns)) or DataError(
                f"{self.path}: the header names {len(found)} columns, `columns` of the source {len(columns)}",
                "list every column of the file under `columns`, or remove the key",
            )

    def _has_row_of(self, width: int) -> bool:
        """Whether one of the first rows after the header has ``width`` cells."""
        return any(len(self._split(row)) == width for row in range(1, min(len(self.rows), 1 + _SAMPLE_RECORDS)))

    def check_columns(self, names: Sequence[str], needed: Sequence[str], place: str) -> None:
        """Validates that every needed column exists exactly once."""
        present = frozenset(names)
        missing = [name for name in needed if name not in present]
        if missing:
            guess = self._header_delimiter_error(names, needed, missing) if place == "header" else None
            raise guess or self._missing_column_error(missing, names, needed, place)
        repeated = [name for name in duplicates(names) if name in set(needed)] if len(present) < len(names) else []
        if repeated:
            raise DataError(
                f"{self.path}: the header names column {repeated[0]!r} twice",
                "rename one of them, or name the columns yourself under `columns`",
            )

    def check_rows(self, width: int, first: int) -> None:
        """Validates that there are rows, and that at least one of the first has as many cells as there are columns."""
        sample = range(first, min(len(self.rows), first + _SAMPLE_RECORDS))
        if not sample:
            if self.whole_file:
                raise DataError(
                    f"{self.path}: the file holds a header but no rows", "remove it from `files`, or write it anew"
                )
            return
        widths = [len(self._split(row)) for row in sample]
        if width not in widths:
            low, high = min(widths), max(widths)
            if 0 in widths and not self.rules.newlines_in_values:
                raise DataError(
                    f"{self.path}, line {self.rows.lines[first + widths.index(0)]}: a quote is opened and not closed "
                    f"in the line, and none of the first {len(widths)} rows has the {width} columns that are named",
                    "set `newlines_in_values: true` where quoted values go over the line's end; else close them",
                )
            raise self._width_delimiter_error(first, width) or DataError(
                f"{self.path}, line {self.rows.lines[first]}: the first {len(widths)} rows have "
                f"{low if low == high else f'{low} to {high}'} columns, {width} are named",
                (_SKIP_TITLES if first and width < low else "")
                + f"correct the header or `columns`; the delimiter is {self._delimiter!r}",
            )

    def after_header(self) -> tuple[int, int]:
        """Returns offset and line number after the header."""
        start = int(self.rows.starts[0])
        end = next((int(end) for end in self.rules.ends(self.data) if end > start), len(self.data))
        return self.first.offset + end, int(self.rows.lines[0]) + self.data.count(b"\n", start, end)

    @property
    def _delimiter(self) -> str:
        return self.rules.delimiter.decode() or "whitespace"

    def _split(self, row: int, delimiter: str | None = None) -> tuple[str, ...]:
        """Splits a record, at another ``delimiter`` if that is given; returns no cells if a quote is left open."""
        split = self.rules.split if delimiter is None else RecordSplitter(delimiter.encode())
        cells = split(self.rows[row])
        return tuple(map(as_text, cells)) if isinstance(cells, list) else ()

    def _header_delimiter_error(
        self, names: Sequence[str], needed: Sequence[str], missing: Sequence[str]
    ) -> DataError | None:
        """Returns an error if the header contains the needed columns when split at another delimiter."""
        for other in _DELIMITERS:
            split = self._split(0, other)
            if other != self._delimiter and len(split) > 1 and set(needed) <= set(split):
                return self._delimiter_error(0, "header", other)
        none_found = len(names) == 1 and len(missing) == len(needed) and not self._is_narrower_than_rows(1)
        return self._width_delimiter_error(0, None) if none_found else None

    def _missing_column_error(
        self, missing: Sequence[str], names: Sequence[str], needed: Sequence[str], place: str
    ) -> DataError:
        if place == "header" and len(missing) == len(needed) and any(_is_number(name) for name in names):
            return DataError(
                f"{self.path}: the first line looks like a row of data; it does not name {', '.join(missing[:8])}",
                "set `header: false` and name the columns under `columns`",
            )
        close = nearest(missing[0], names)
        shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
        hint = f"did you mean {close!r}?" if close else "correct the column's name"
        if place == "header" and close is None and self._is_narrower_than_rows(len(names)):
            hint = f"{_SKIP_TITLES}{hint}"
        return DataError(f"{self.path}: column {missing[0]!r} is not in the {place}, which names: {shown}", hint)

    def _is_narrower_than_rows(self, width: int) -> bool:
        """Whether most of the first records have more cells than a header of ``width``, as below a title."""
        sample = range(1, min(len(self.rows), 1 + _SAMPLE_RECORDS))
        return sum(len(self._split(row)) > width for row in sample) * 2 > len(sample)

    def _width_delimiter_error(self, row: int, width: int | None) -> DataError | None:
        """Returns an error if another delimiter splits a row into ``width`` columns (None: into more than one)."""
        for other in _DELIMITERS:
            count = len(self._split(row, other))
            if other != self._delimiter and count > 1 and (width is None or count == width):
                return self._delimiter_error(
                    row, "header" if width is None else f"row in line {self.rows.lines[row]}", other
                )
        return None

    def _delimiter_error(self, row: int, what: str, other: str) -> DataError:
        received, possible = len(self._split(row)), len(self._split(row, other))
        return DataError(
            f"{self.path}: wrong delimiter? received {self._delimiter!r}, which splits the {what} into {received} "
            f"column{'' if received == 1 else 's'}; {other!r} splits it into {possible}",
            f"set `delimiter: {json.dumps(other)}` on the source",
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
