"""Finds where the records of a text begin and end: at line ends, except line ends inside quoted values.

A line ends in LF or CR LF. A quoted value begins with a quote at the start of a field; a doubled quote inside it means
one quote character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]

_LF, _CR, _QUOTE = 10, 13, 34


@dataclass(frozen=True)
class RecordRules:
    """How a text format separates fields, and whether quoted values may contain line ends.

    Attributes:
        delimiter: one byte between fields.
        newlines_in_values: a line end inside quotes belongs to the value.
        quotes: whether quotes enclose values; if not, they are ordinary characters.
        skip_lines: lines before the first record, which are none.
    """

    delimiter: bytes = b","
    newlines_in_values: bool = False
    quotes: bool = True
    skip_lines: int = 0

    @property
    def drops_lines(self) -> bool:
        """Whether lines other than empty ones may be no records; see :meth:`is_record`."""
        return False

    def is_record(self, line: bytes) -> bool:
        """Whether a line that is not empty is a record."""
        return True

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        delimiter = re.escape(self.delimiter)
        return re.compile(rb'(?<![^%s\n])"[^"]*+(?:""[^"]*+)*+(?P<close>"?)' % delimiter)

    def ends(self, data: bytes) -> Offsets:
        """Returns the offsets just after each record's line end in ``data``, which begins at a record."""
        buffer = np.frombuffer(data, np.uint8)
        newlines = np.flatnonzero(buffer == _LF)
        if self.newlines_in_values and b'"' in data:
            newlines = newlines[~self._quoted_spans(data, buffer).contain(newlines)]
        return newlines + 1

    def last_record_end(self, data: bytes) -> int:
        """Returns the last of :meth:`ends`, or 0 if ``data`` holds no whole record."""
        if not self.newlines_in_values or b'"' not in data:
            return data.rfind(b"\n") + 1
        ends = self.ends(data)
        return int(ends[-1]) if len(ends) else 0

    def quotes_close(self, data: bytes) -> bool:
        """Whether every quoted value in ``data`` is closed and, unless ``newlines_in_values``, ends on its own line."""
        if not self.quotes or b'"' not in data:
            return True
        quoted = self._quoted_spans(data, np.frombuffer(data, np.uint8))
        if quoted.left_open:
            return False
        return self.newlines_in_values or not quoted.contain(np.flatnonzero(np.frombuffer(data, np.uint8) == _LF)).any()

    def _quoted_spans(self, data: bytes, buffer: npt.NDArray[np.uint8]) -> _Quoted:
        quotes = np.flatnonzero(buffer == _QUOTE)
        before = buffer[quotes[::2] - 1]  # wraps around for a quote at offset 0; the next line corrects that
        before[quotes[::2] == 0] = _LF
        if np.isin(
            before, [self.delimiter[0], _LF, _QUOTE]
        ).all():  # every odd quote opens a value, every even one ends it
            left_open = len(quotes) % 2 == 1
            return _Quoted(quotes[::2], np.append(quotes[1::2], len(data)) if left_open else quotes[1::2], left_open)
        matches = list(self._quoted.finditer(data))
        starts, stops = np.array([match.span() for match in matches], np.int64).reshape(-1, 2).T
        return _Quoted(starts, stops, bool(matches) and not matches[-1]["close"])


@dataclass(frozen=True, slots=True)
class _Quoted:
    """Spans of quoted values. A doubled quote may split a value into two spans. Only the last span may be left open."""

    starts: Offsets
    stops: Offsets
    left_open: bool

    def contain(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Returns which of ``offsets`` are inside a quoted value."""
        opened = np.searchsorted(self.starts, offsets, side="right")
        return offsets < np.concatenate([[0], self.stops])[opened]


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a text, without empty lines.

    Attributes:
        data: the text.
        starts: offset of each record.
        stops: offset after each record's last byte, without its line end.
        lines: line number of each record.
        next_line: line number after the end of the text.
    """

    data: bytes
    starts: Offsets
    stops: Offsets
    lines: Offsets
    next_line: int

    @classmethod
    def of(cls, data: bytes, first_line: int, rules: RecordRules) -> Records:
        """Finds the records of ``data``, whose first line is ``first_line``; the last record may lack a line end."""
        ends = rules.ends(data)
        open_end = len(data) > (ends[-1] if len(ends) else 0)
        if open_end:
            ends = np.append(ends, len(data))
        starts = np.concatenate([[0], ends]).astype(np.int64)[:-1]
        buffer = np.frombuffer(data, np.uint8)
        stops = ends - (buffer[ends - 1] == _LF)
        stops = stops - ((stops > starts) & (buffer[stops - 1] == _CR))
        if rules.newlines_in_values:
            lines = first_line + np.searchsorted(np.flatnonzero(buffer == _LF), starts)
        else:
            lines = first_line + np.arange(len(starts), dtype=np.int64)
        filled = stops > starts
        if rules.drops_lines:
            rows = np.flatnonzero(filled)
            filled[rows] = [rules.is_record(data[starts[row] : stops[row]]) for row in rows]
        next_line = first_line + (count_lines(data) if rules.newlines_in_values else len(ends))
        if filled.all():
            return cls(data, starts, stops, lines, next_line)
        return cls(data, starts[filled], stops[filled], lines[filled], next_line)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: int) -> bytes:
        return self.data[self.starts[row] : self.stops[row]]


def count_lines(data: bytes) -> int:
    """Returns the number of lines in ``data``, including a last one without line end."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def has_lone_carriage_return(data: bytes) -> bool:
    """Whether ``data`` contains a CR that is not part of a line end."""
    found = data.count(b"\r")
    return found > 0 and found != data.count(b"\r\n")
