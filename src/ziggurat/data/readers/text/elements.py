"""Turns JSON arrays, and lines of Python literals, into JSON lines while they are read, in bounded memory.

The number of a line is then the number of the element, counted from 1. What cannot be turned is left as it is, so that
it is rejected with its number.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import numpy as np

from ziggurat.core.errors import DataError
from ziggurat.data.readers.text.decode import ByteStream

_READ_BYTES = 2**20
_LONGEST_LITERAL = 2**20
_ESCAPED = re.compile(rb"(?s)\\.")
_LINE_START = re.compile(rb"\n +")
_LF, _CR, _SPACE, _QUOTE, _COMMA = (ord(mark) for mark in '\n\r ",')
_TAB_IN_TEXT = 11
"""Stands for a line end within quotes: JSON allows neither it nor this control character there."""


class _Translated:
    """A stream whose bytes are made of another's, piece by piece."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._ready = b""
        self._ended = False

    def read(self, nbytes: int) -> bytes:
        parts, size = [self._ready], len(self._ready)
        while size < nbytes and not self._ended:
            data = self._stream.read(_READ_BYTES)
            self._ended = len(data) < _READ_BYTES
            parts.append(self._translate(data, self._ended))
            size += len(parts[-1])
        whole = b"".join(parts)
        self._ready = whole[nbytes:]
        return whole[:nbytes]

    def _translate(self, data: bytes, last: bool) -> bytes:
        raise NotImplementedError


class ArrayElements(_Translated):
    """The elements of a JSON array, one a line.

    Args:
        stream: the text.
        path: the path of the file, for messages.

    :meth:`read` raises a DataError for text that is no array, or ends before the array does.
    """

    def __init__(self, stream: ByteStream, path: object) -> None:
        super().__init__(stream)
        self._path = path
        self._begun = self._closed = False
        self._depth, self._in_text, self._at_start = 1, False, True
        self._rest = b""

    def _translate(self, data: bytes, last: bool) -> bytes:
        data, self._rest = self._rest + data, b""
        if not self._begun:
            data = data.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
            if not data and not last:
                return b""
            if not data.startswith(b"["):
                raise DataError(
                    f"{self._path}: is no JSON array, as it does not begin with [",
                    "set `records: lines` on the source if it has one object a line",
                )
            self._begun, data = True, data[1:]
        masked = _ESCAPED.sub(b"__", data)
        if masked.endswith(b"\\"):  # what it escapes is yet to come
            self._rest, data, masked = data[-1:], data[:-1], masked[:-1]
        lines = self._lines(data, masked) if not self._closed else data if data.strip() else b""
        if last and not self._closed:
            raise DataError(
                f"{self._path}: the JSON array is not closed: the file is truncated, or a bracket or quote is missing",
                "copy or write it again, whole",
            )
        return lines

    def _lines(self, data: bytes, masked: bytes) -> bytes:
        buffer, out = np.frombuffer(masked, np.uint8), np.frombuffer(data, np.uint8).copy()
        quotes = buffer == _QUOTE
        in_text = (np.cumsum(quotes) + self._in_text) % 2 == 1
        outside = ~in_text & ~quotes
        opens = outside & np.isin(buffer, [ord("["), ord("{")])
        closes = outside & np.isin(buffer, [ord("]"), ord("}")])
        depth = self._depth + np.cumsum(opens.astype(np.int64) - closes)
        line_ends = (buffer == _LF) | (buffer == _CR)
        out[line_ends & outside] = _SPACE
        out[line_ends & ~outside] = _TAB_IN_TEXT
        out[outside & (buffer == _COMMA) & (depth == 1)] = _LF
        end = np.flatnonzero(closes & (depth == 0) & (buffer == ord("]")))
        after = b""
        if len(end):
            self._closed = True
            after = data[end[0] + 1 :]
            out = out[: end[0]]
        elif len(buffer):
            self._in_text, self._depth = bool(in_text[-1]), int(depth[-1])
        text = out.tobytes()
        if self._at_start:
            text = text.lstrip(b" ")
        self._at_start = not text if self._at_start else text.rstrip(b" ").endswith(b"\n")
        text = _LINE_START.sub(b"\n", text)
        return text if not self._closed else text + b"\n" + after.lstrip(b" \t\r\n")


class PythonLines(_Translated):
    """Lines of Python literals, such as ``{'id': 7, 'ok': True}``, as JSON."""

    _rest = b""

    def _translate(self, data: bytes, last: bool) -> bytes:
        whole = self._rest + data
        cut = len(whole) if last else whole.rfind(b"\n") + 1
        lines, self._rest = whole[:cut].split(b"\n"), whole[cut:]
        return b"\n".join(map(json_of_literal, lines))


def json_of_literal(line: bytes) -> bytes:
    """Returns a Python literal as JSON; what is none, unchanged."""
    if not line.strip():
        return line
    if b'"' not in line and b"\\" not in line:  # then every single quote encloses text
        quoted = line.replace(b"'", b'"')
        if _is_json(quoted):
            return quoted
    elif _is_json(line):
        return line
    if len(line) > _LONGEST_LITERAL:
        return line
    try:
        value = ast.literal_eval(line.decode("utf-8").strip())
        return json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return line


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError
