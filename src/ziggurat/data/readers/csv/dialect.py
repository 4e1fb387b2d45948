"""How delimited text separates its cells, and how text of any dialect is rewritten for the fast parser.

pyarrow parses cells with one byte between them, with double quotes or without. Every other dialect (several characters
or runs of blanks between cells, blanks beside delimiters, backslash escapes, comments) is rewritten, a block at a time,
into that form. The rewriting keeps the number of lines, and leaves ordinary lines to vectorised operations; a line with
a quote or an escape is split by :class:`RecordSplitter` and put together again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ziggurat.data.readers.csv.record_split import CellGrammar, RecordSplitter
from ziggurat.data.readers.text.records import Offsets, RecordRules, Records

INNER_DELIMITER = b"\x1f"
"""ASCII's unit separator; between the cells of rewritten text where the dialect's own delimiter is not one byte."""

_LF, _CR, _SPACE, _TAB, _QUOTE = 10, 13, 32, 9, 34


@dataclass(frozen=True)
class Dialect(RecordRules):
    """A dialect of delimited text.

    Attributes:
        delimiter: the bytes between cells; empty for runs of blanks and tabs.
        escape: the byte before a quote, a delimiter, a line end or itself that makes it part of the value.
        skip_blanks: blanks beside delimiters are not part of the values.
        comment: lines that begin with it are ignored.
    """

    escape: bytes = b""
    skip_blanks: bool = False
    comment: bytes = b""

    @property
    def splits_at_blanks(self) -> bool:
        return not self.delimiter

    @cached_property
    def rewrites_cells(self) -> bool:
        """Whether the cells of every line are rewritten."""
        return len(self.delimiter) != 1 or bool(self.escape) or self.skip_blanks

    @property
    def parsed_delimiter(self) -> bytes:
        """The delimiter of the text that the fast parser reads."""
        return self.delimiter if len(self.delimiter) == 1 else INNER_DELIMITER

    @property
    def parsed_quotes(self) -> bool:
        """Whether quotes enclose values in the text that the fast parser reads."""
        return self.quotes or bool(self.escape)

    @property
    def is_written_plainly(self) -> bool:
        """Whether a record with a delimiter and a number appended is a record of the usual dialect."""
        return not self.rewrites_cells

    @cached_property
    def split(self) -> RecordSplitter:
        """Splits one record into its cells: the reference for :meth:`rewritten`."""
        return RecordSplitter(self.delimiter, self._grammar)

    @cached_property
    def _grammar(self) -> CellGrammar:
        return CellGrammar(self.delimiter, self.quotes, self.escape, self.skip_blanks)

    def ends(self, data: bytes) -> Offsets:
        if not self.newlines_in_values or not (self.rewrites_cells or self.comment):
            return super().ends(data)
        found = [match.end() for match in self._record.finditer(data) if match["end"]]
        return np.array(found, np.int64)

    def last_record_end(self, data: bytes) -> int:
        if not self.newlines_in_values or not (self.rewrites_cells or self.comment):
            return super().last_record_end(data)
        ends = self.ends(data)
        return int(ends[-1]) if len(ends) else 0

    def quotes_close(self, data: bytes) -> bool:
        """As in :class:`RecordRules`, of text that :meth:`rewritten` returns, in which every quote is closed."""
        return RecordRules(self.parsed_delimiter, self.newlines_in_values, self.parsed_quotes).quotes_close(data)

    def is_record(self, line: bytes) -> bool:
        if self.comment and line.startswith(self.comment):
            return False
        if not (self.splits_at_blanks or self.skip_blanks):
            return True
        return bool(line.strip(b" " if self.delimiter == b"\t" else b" \t"))

    @property
    def drops_lines(self) -> bool:
        return bool(self.comment) or self.splits_at_blanks or self.skip_blanks

    def rewritten(self, data: bytes) -> bytes | None:
        """Returns whole records as text for the fast parser, line by line; None if a line cannot be split.

        The delimiter of the result is :attr:`parsed_delimiter`.
        """
        if self.comment and self.comment in data:
            data = self._without_comments(data)
        if not self.rewrites_cells:
            return data
        if len(self.delimiter) != 1 and INNER_DELIMITER in data:
            return None
        quotes, escapes = b'"' in data and self.parsed_quotes, bool(self.escape) and self.escape in data
        if not escapes and not (quotes and not self.quotes):
            rewritten = self._rewrite_blocks(data, quotes)
            if rewritten is not None:
                return rewritten
        return self._by_record(data) if self.newlines_in_values else self._by_line(data)

    def rewritten_where_possible(self, data: bytes) -> bytes:
        """As :meth:`rewritten`, without the records that cannot be split."""
        records = Records.of(data, 1, self)
        lines = (self._joined(records[row]) for row in range(len(records)))
        return b"".join(line + b"\n" for line in lines if line is not None)

    @cached_property
    def _record(self) -> re.Pattern[bytes]:
        comment = rb"%s[^\n]*+|" % re.escape(self.comment) if self.comment else b""
        return re.compile(rb"(?:%s%s)(?P<end>\n|\Z)" % (comment, self._grammar.record), re.DOTALL)

    def _without_comments(self, data: bytes) -> bytes:
        if not self.newlines_in_values:
            return re.sub(rb"(?m)^%s[^\n]*" % re.escape(self.comment), b"", data)
        records = [data[start:stop] for start, stop in _spans(self.ends(data), len(data))]
        return b"".join(b"\n" if record.startswith(self.comment) else record for record in records)

    def _by_record(self, data: bytes) -> bytes | None:
        parts: list[bytes] = []
        for start, stop in _spans(self.ends(data), len(data)):
            record = data[start:stop].removesuffix(b"\n").removesuffix(b"\r")
            line = self._joined(record) if self.is_record(record) else b""
            if line is None:
                return None
            parts.append(line)
        return b"\n".join(parts) + b"\n"

    def _by_line(self, data: bytes) -> bytes | None:
        """Rewrites the lines with quotes and escapes one by one, and the text between them at once."""
        buffer = np.frombuffer(data, np.uint8)
        special = (buffer == self.escape[0]) if self.escape else np.zeros(len(buffer), np.bool_)
        if len(self.delimiter) != 1 or self.skip_blanks or not self.quotes:
            special |= buffer == _QUOTE  # else a line with quotes and without escapes stays as it is
        newlines = np.flatnonzero(buffer == _LF)
        parts: list[bytes] = []
        offset = 0
        for line in np.unique(np.searchsorted(newlines, np.flatnonzero(special))).tolist():
            start = int(newlines[line - 1]) + 1 if line else 0
            stop = int(newlines[line]) if line < len(newlines) else len(data)
            joined = self._joined(data[start:stop].removesuffix(b"\r"))
            between = self._rewrite_blocks(data[offset:start], quotes=False)
            if joined is None or between is None:
                return None
            parts += [between, joined]
            offset = stop
        rest = self._rewrite_blocks(data[offset:], quotes=False)
        return None if rest is None else b"".join([*parts, rest])

    def _joined(self, record: bytes) -> bytes | None:
        """Returns the cells of a record, joined; None if they cannot be split."""
        if not self.is_record(record):
            return b""
        cells = self.split(record)
        if not isinstance(cells, list):
            return None
        delimiter = self.parsed_delimiter
        return delimiter.join(
            b'"%s"' % cell.replace(b'"', b'""')
            if cell.startswith(b'"') or delimiter in cell or b"\n" in cell or b"\r" in cell
            else cell
            for cell in cells
        )

    def _rewrite_blocks(self, data: bytes, quotes: bool) -> bytes | None:
        """Rewrites text without escapes; None if ``quotes`` do not enclose whole cells, which is to be looked at."""
        if len(self.delimiter) > 1:
            data = data.replace(self.delimiter, INNER_DELIMITER)
        strips = self.splits_at_blanks or self.skip_blanks
        if not (strips or quotes):
            return data
        if strips and quotes and self.newlines_in_values and b"\r\n" in data:
            return None  # a line end within quotes is part of the value, and stays as it is
        buffer = np.frombuffer(data.replace(b"\r\n", b"\n") if strips else data, np.uint8)
        inside = _inside_quotes(buffer) if quotes else None
        if inside is not None:
            if len(self.delimiter) > 1 and (inside & (buffer == INNER_DELIMITER[0])).any():
                return None
            if not self.newlines_in_values and (inside & (buffer == _LF)).any():
                return None
        if strips:
            buffer = self._without_blanks(buffer, inside)
        return buffer.tobytes() if inside is None or self._quotes_enclose_cells(buffer) else None

    def _without_blanks(
        self, buffer: npt.NDArray[np.uint8], inside: npt.NDArray[np.bool_] | None
    ) -> npt.NDArray[np.uint8]:
        """Drops blanks at the ends of cells, or turns runs of blanks within lines into one delimiter."""
        blank = (buffer == _SPACE) | ((buffer == _TAB) & (self.delimiter != b"\t"))
        if inside is not None:
            blank &= ~inside
        if not blank.any():
            return buffer
        edges = np.flatnonzero(np.diff(blank.view(np.int8), prepend=np.int8(0), append=np.int8(0)))
        starts, stops = edges[::2], edges[1::2]
        bounds = [_LF] if self.splits_at_blanks else [_LF, self.parsed_delimiter[0]]
        outer = np.isin(buffer[np.maximum(starts, 1) - 1], bounds) | (starts == 0)
        outer |= np.isin(buffer[np.minimum(stops, len(buffer) - 1)], bounds) | (stops == len(buffer))
        keep = ~blank
        if self.splits_at_blanks:
            buffer = buffer.copy()
            buffer[starts[~outer]] = INNER_DELIMITER[0]
            keep[starts[~outer]] = True
        else:
            keep[np.flatnonzero(blank)[~np.repeat(outer, stops - starts)]] = True
        return buffer[keep]

    def _quotes_enclose_cells(self, buffer: npt.NDArray[np.uint8]) -> bool:
        """Whether every odd quote stands before a cell and every even one after it, or next to another quote."""
        quotes = np.flatnonzero(buffer == _QUOTE)
        bounds = [_LF, _QUOTE, self.parsed_delimiter[0]]
        if len(quotes) % 2:
            return False
        opening, closing = quotes[::2], quotes[1::2]
        before = np.isin(buffer[np.maximum(opening, 1) - 1], bounds) | (opening == 0)
        after = np.isin(buffer[np.minimum(closing + 1, len(buffer) - 1)], [*bounds, _CR]) | (closing == len(buffer) - 1)
        return bool(before.all() and after.all())


def _inside_quotes(buffer: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Returns which bytes follow an odd number of quotes; an opening quote is inside, a closing one is not."""
    return np.logical_xor.accumulate(buffer == _QUOTE)


def _spans(ends: Offsets, size: int) -> list[tuple[int, int]]:
    """Returns the start and stop of each record, also of a last one without line end."""
    stops = ends.tolist()
    if not stops or stops[-1] < size:
        stops.append(size)
    return list(zip([0, *stops[:-1]], stops, strict=True)) if size else []
