"""Finds by the beginning of a file how its JSON objects are written: one a line, in an array, or as Python literals."""

from __future__ import annotations

import re
from typing import Literal

from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head

RecordsKind = Literal["lines", "array", "python"]

_HEAD_BYTES = 2**16
_ARRAY = re.compile(rb"^\s*\[\s*(\{|\]|$)")
_PYTHON = re.compile(rb"^\s*\{\s*[ub]?'")


def find_records_kind(file: SourceFile) -> RecordsKind:
    """Returns the kind; ``lines`` for whatever is neither of the others.

    Raises:
        DataError: the file cannot be read.
    """
    head = read_head(file, _HEAD_BYTES, lambda data: len(data)).data.removeprefix(b"\xef\xbb\xbf")
    if _ARRAY.match(head):
        return "array"
    return "python" if _PYTHON.match(head) else "lines"
