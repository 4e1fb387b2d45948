"""Splits one delimited record into cells in Python: the reference implementation for pyarrow's splitting."""

from __future__ import annotations

import re

from ziggurat.core.errors import shorten
from ziggurat.data.readers.rejection_reasons import as_text, rejection_reason

OPEN_QUOTE = "quoted value is not closed"


class RecordSplitter:
    """Splits records as pyarrow does: quotes count only at the start of a cell; a doubled quote means one quote."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        rest = rb"[^%s]*" % re.escape(delimiter)
        self._cell = re.compile(
            rb'(?:"((?:[^"]|"")*+)("?)(%s)|(%s))(%s|\Z)' % (rest, rest, re.escape(delimiter)), re.DOTALL
        )

    def __call__(self, record: bytes) -> list[bytes] | str:
        """Returns the cells, or the reason why the record cannot be split."""
        if b'"' not in record:
            return record.split(self._delimiter)
        cells: list[bytes] = []
        offset = 0
        while True:
            match = self._cell.match(record, offset)
            assert match is not None, record
            quoted, closing, after_quote, plain, delimiter = match.groups()
            if quoted is None:
                cells.append(plain)
            elif closing:
                cells.append(quoted.replace(b'""', b'"') + after_quote)
            else:
                received = f"received {shorten(as_text(record[match.start() :]))}"
                hint = "close the quote; if values may hold line ends, set `newlines_in_values: true`"
                return rejection_reason(OPEN_QUOTE, received, hint)
            offset = match.end()
            if not delimiter:
                return cells
