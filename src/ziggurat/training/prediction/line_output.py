"""Writes complete records with probabilities appended; the bytes of the original line are not changed.

The first column of a table to write is ``line`` of :class:`~ziggurat.data.readers.raw_rows.LineRows`; the
probabilities follow.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from io import BufferedWriter
from pathlib import Path

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.temporary import unnamed_file
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.csv.rows import joined_buffers, text_buffer

Parts = list[pa.Array | pa.Scalar]

_BRACE = ord("}")
_NO_VALUE_ENDS = np.zeros(256, np.bool_)
"""The bytes before a last brace with which no value ends: whitespace, or the first brace of an empty object."""
_NO_VALUE_ENDS[np.frombuffer(b" \t\n\v\f\r{", np.uint8)] = True


class LineOutput(ABC):
    """Writes tables, in order.

    Args:
        file: the open output.
        names: names of the probabilities.
    """

    def __init__(self, file: BufferedWriter, names: Sequence[str]) -> None:
        self._file = file
        self._names = names

    def write(self, table: pa.Table) -> None:
        """Appends rows."""
        if table.num_rows:
            lines = table.column(0).combine_chunks()
            texts = [self._text(table.column(name).combine_chunks()) for name in self._names]
            for buffer in joined_buffers([*self._parts(lines, texts), _scalar("\n")]):
                self._file.write(buffer)

    def _text(self, values: pa.Array) -> pa.Array:
        """Returns numbers as they are written, and text as the format quotes it."""
        if not pa.types.is_string(values.type):
            return values.cast(pa.string()).cast(pa.binary())
        distinct = values.dictionary_encode(null_encoding="encode")
        quoted = pa.array([self._quote(value).encode() for value in distinct.dictionary.to_pylist()], pa.binary())
        return quoted.take(distinct.indices)

    @abstractmethod
    def _quote(self, value: str | None) -> str:
        """Returns a text, or a missing value, as it is written."""

    @abstractmethod
    def _parts(self, lines: pa.Array, probabilities: Sequence[pa.Array]) -> Parts:
        """Returns the parts that are joined to the new lines, without line ends."""


class DelimitedLines(LineOutput):
    """Writes CSV or TSV with a header of ``columns`` and the names of the probabilities."""

    def __init__(self, file: BufferedWriter, names: Sequence[str], columns: Sequence[str], delimiter: str) -> None:
        super().__init__(file, names)
        self._mark, self._delimiter = delimiter, _scalar(delimiter)
        header = delimiter.join(_quoted(name, delimiter) for name in [*columns, *names])
        file.write(f"{header}\n".encode())

    def _quote(self, value: str | None) -> str:
        return "" if value is None else _quoted(value, self._mark)

    def _parts(self, lines: pa.Array, probabilities: Sequence[pa.Array]) -> Parts:
        return [lines, *(part for values in probabilities for part in (self._delimiter, values))]


class JsonLines(LineOutput):
    """Writes one JSON object per line, with the probabilities as its last keys."""

    def _quote(self, value: str | None) -> str:
        return json.dumps(value, ensure_ascii=False)

    def _parts(self, lines: pa.Array, probabilities: Sequence[pa.Array]) -> Parts:
        text = text_buffer(lines).to_pybytes()
        for name in self._names:
            _check_absent(lines, text, name)
        parts = _without_last_brace(lines)
        for index, (name, values) in enumerate(zip(self._names, probabilities, strict=True)):
            parts += [_scalar(f"{',' if index else ''}{json.dumps(name, ensure_ascii=False)}:"), values]
        return [*parts, _scalar("}")]


@contextlib.contextmanager
def delimited_lines(path: Path, names: Sequence[str], columns: Sequence[str], delimiter: str) -> Generator[LineOutput]:
    """Yields :class:`DelimitedLines`; the file appears at ``path`` when it is complete."""
    with unnamed_file(path) as temporary, temporary.open("wb") as file:
        yield DelimitedLines(file, names, columns, delimiter)


@contextlib.contextmanager
def json_lines(path: Path, names: Sequence[str]) -> Generator[LineOutput]:
    """Yields :class:`JsonLines`; the file appears at ``path`` when it is complete."""
    with unnamed_file(path) as temporary, temporary.open("wb") as file:
        yield JsonLines(file, names)


def _without_last_brace(lines: pa.Array) -> Parts:
    """Returns objects up to their last key and value, with a comma after it if there is one."""
    buffer = text_buffer(lines)
    bounds = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + len(lines) + 1]
    ends, text = bounds[1:] - bounds[0], np.frombuffer(buffer, np.uint8)
    if (np.diff(bounds) >= 2).all() and (text[ends - 1] == _BRACE).all() and not _NO_VALUE_ENDS[text[ends - 2]].any():
        return [pc.binary_slice(lines, 0, -1), _scalar(",")]
    texts = pc.ascii_rtrim_whitespace(lines.view(pa.string()))
    bodies = pc.ascii_rtrim_whitespace(pc.binary_slice(texts.view(pa.binary()), 0, -1).view(pa.string()))
    bodies = bodies.view(pa.binary())
    empty = pc.equal(pc.ascii_ltrim_whitespace(bodies.view(pa.string())).view(pa.binary()), _scalar("{"))
    return [bodies, pc.if_else(empty, _scalar(""), _scalar(","))]


def _check_absent(lines: pa.Array, text: bytes, name: str) -> None:
    """Refuses rows that already have the key ``name``; lines that contain its text are parsed, as it may be a value.

    Args:
        lines: the rows.
        text: all of them, concatenated.
        name: the key.
    """
    key = json.dumps(name, ensure_ascii=False).encode()
    if key not in text:
        return
    candidates = lines.filter(pc.match_substring(lines, key))
    for line in _texts(candidates):
        if name in json.loads(line):
            raise DataError(f"a row has the key {name!r} already: {line[:200]}", "rename it")


def _texts(lines: pa.Array) -> Iterator[str]:
    return (line.decode("utf-8", errors="replace") for line in lines.to_pylist())


def _quoted(name: str, delimiter: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"' if any(special in name for special in (delimiter, '"', "\n", "\r")) else name


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.binary())
