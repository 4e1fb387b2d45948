"""The cells of one delimited record, in Python: the reference beside pyarrow's splitting."""

from __future__ import annotations

import re

from ziggurat.core.errors import shorten
from ziggurat.data.readers.rejection_reasons import as_text, refusal

OPEN_QUOTE = "quoted value is not closed"


class RecordSplitter:
    """Cells of one record, as pyarrow splits it: a quote counts at the start of a cell only; a doubled quote is one."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        rest = rb"[^%s]*" % re.escape(delimiter)
        self._cell = re.compile(
            rb'(?:"((?:[^"]|"")*+)("?)(%s)|(%s))(%s|\Z)' % (rest, rest, re.escape(delimiter)), re.DOTALL
        )

    def __call__(self, record: bytes) -> list[bytes] | str:
        """The cells, or the reason why the record has none."""
        if b'"' not in record:
            return record.split(self._delimiter)
        cells: list[bytes] = []
        place = 0
        while True:
            match = self._cell.match(record, place)
            assert match is not None, record
            quoted, closing, behind, plain, delimiter = match.groups()
            if quoted is None:
                cells.append(plain)
            elif closing:
                cells.append(quoted.replace(b'""', b'"') + behind)
            else:
                received = f"received {shorten(as_text(record[match.start() :]))}"
                hint = "close the quote; if values may hold line ends, set `newlines_in_values: true`"
                return refusal(OPEN_QUOTE, received, hint)
            place = match.end()
            if not delimiter:
                return cells
