"""Splits one delimited record into cells in Python: the reference implementation for pyarrow's splitting."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from ziggurat.core.errors import shorten
from ziggurat.data.readers.rejection_reasons import as_text, rejection_reason

OPEN_QUOTE = "quoted value is not closed"


@dataclass(frozen=True)
class CellGrammar:
    """The grammar of cells, as regular expressions of bytes.

    Attributes:
        delimiter: what separates cells; empty for runs of blanks and tabs.
        quotes: whether double quotes enclose values.
        escape: the byte that makes the next one part of the value; empty if there is none.
        skip_blanks: whether blanks beside delimiters are dropped.
    """

    delimiter: bytes
    quotes: bool = True
    escape: bytes = b""
    skip_blanks: bool = False

    @property
    def between(self) -> bytes:
        """What separates two cells."""
        return re.escape(self.delimiter) if self.delimiter else rb"[ \t]+"

    @property
    def blanks(self) -> bytes:
        """Blanks at the ends of a cell that are dropped; without groups."""
        return b"" if not self.skip_blanks else rb"[ ]*+" if self.delimiter == b"\t" else rb"[ \t]*+"

    def rest(self, more: bytes = b"") -> bytes:
        """Returns the characters of a cell up to the next delimiter, none of ``more`` among them."""
        if len(self.delimiter) > 1:
            excluded = more + self._escaped
            plain = rb"(?!%s)%s" % (self.between, b"[^%s]" % excluded if excluded else b".")
        else:
            plain = rb"[^%s%s%s]" % (re.escape(self.delimiter) or rb" \t", more, self._escaped)
        return rb"(?:%s%s)*+" % (plain, self._pair)

    @property
    def quoted(self) -> bytes:
        """What stands between two quotes."""
        return rb'(?:[^"%s]|""%s)*+' % (self._escaped, self._pair)

    @property
    def record(self) -> bytes:
        """A record up to its line end, in which quoted values and escapes may hold line ends; without groups."""
        rest = self.rest(rb"\n")
        cell = rb'(?:%s"%s(?:"%s|\Z)|%s)' % (self.blanks, self.quoted, rest, rest) if self.quotes else rest
        return rb"%s(?:%s%s)*+" % (cell, self.between, cell)

    @property
    def _escaped(self) -> bytes:
        return re.escape(self.escape)

    @property
    def _pair(self) -> bytes:
        return rb"|%s(?:\r\n|.|\Z)" % self._escaped if self.escape else b""

    @cached_property
    def unescaped(self) -> re.Pattern[bytes] | None:
        """Matches an escape and, as its group, what stands for itself after it."""
        if not self.escape:
            return None
        itself = b'"' * self.quotes + self.escape + self.delimiter[:1] + (b"" if self.delimiter else b" \t")
        return re.compile(rb"%s([%s]|\r?\n)" % (self._escaped, re.escape(itself)))


class RecordSplitter:
    """Splits records as pyarrow does: quotes count only at the start of a cell; a doubled quote means one quote.

    Args:
        delimiter: the bytes between cells; empty for runs of blanks and tabs.
        grammar: the grammar of cells; default: the usual one.
    """

    def __init__(self, delimiter: bytes, grammar: CellGrammar | None = None) -> None:
        self._grammar = grammar or CellGrammar(delimiter)
        self._delimiter = delimiter
        self._marks = [mark for mark in (b'"' * self._grammar.quotes, self._grammar.escape) if mark]
        self._trimmed = b" " if delimiter == b"\t" else b" \t"
        rest, blanks, between = self._grammar.rest(), self._grammar.blanks, self._grammar.between
        quoted = rb'%s"(%s)("?)(%s)' % (blanks, self._grammar.quoted, rest) if self._grammar.quotes else rb"(?!)()()()"
        self._cell = re.compile(rb"(?:%s|(%s))(%s|\Z)" % (quoted, rest, between), re.DOTALL)

    def __call__(self, record: bytes) -> list[bytes] | str:
        """Returns the cells, or the reason why the record cannot be split."""
        if not self._delimiter:
            record = record.strip(b" \t")
        if not any(mark in record for mark in self._marks):
            cells = record.split(self._delimiter) if self._delimiter else re.split(rb"[ \t]+", record)
            return [cell.strip(self._trimmed) for cell in cells] if self._grammar.skip_blanks else cells
        cells: list[bytes] = []
        offset = 0
        while True:
            match = self._cell.match(record, offset)
            assert match is not None, record
            quoted, closing, after_quote, plain, delimiter = match.groups()
            if quoted is None:
                plain = plain.strip(self._trimmed) if self._grammar.skip_blanks else plain
                cells.append(self._unescaped(plain))
            elif closing:
                after_quote = after_quote.rstrip(self._trimmed) if self._grammar.skip_blanks else after_quote
                cells.append(self._unescaped(quoted.replace(b'""', b'"') + after_quote))
            else:
                received = f"received {shorten(as_text(record[match.start() :]))}"
                hint = (
                    "close the quote; if values may hold line ends, set `newlines_in_values: true`; if quotes are "
                    "ordinary characters in this file, set `quotes: false`"
                )
                return rejection_reason(OPEN_QUOTE, received, hint)
            offset = match.end()
            if not delimiter:
                return cells

    def _unescaped(self, cell: bytes) -> bytes:
        pairs = self._grammar.unescaped
        return cell if pairs is None or self._grammar.escape not in cell else pairs.sub(rb"\1", cell)
