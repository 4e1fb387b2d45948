"""Whole records written on with probabilities at their ends: what stood in the line stays as it was, byte for byte.

A table to write has the column ``line`` of :class:`~ziggurat.data.readers.raw_rows.LineRows` first, then the
probabilities.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from io import BufferedWriter
from pathlib import Path

import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.csv.rows import join_text

Parts = list[pa.Array | pa.Scalar]


class LineOutput(ABC):
    """Takes tables, in order.

    Args:
        file: where to write.
        names: of the probabilities.
    """

    def __init__(self, file: BufferedWriter, names: Sequence[str]) -> None:
        self._file = file
        self._names = names

    def write(self, table: pa.Table) -> None:
        """Append rows."""
        if table.num_rows:
            lines = table.column(0).combine_chunks()
            texts = [table.column(name).combine_chunks().cast(pa.string()).cast(pa.binary()) for name in self._names]
            self._file.write(join_text([*self._parts(lines, texts), _text("\n")]))

    @abstractmethod
    def _parts(self, lines: pa.Array, probabilities: Sequence[pa.Array]) -> Parts:
        """What makes up the new lines, without their ends."""


class DelimitedLines(LineOutput):
    """CSV or TSV under a header of ``columns`` and the probabilities' names."""

    def __init__(self, file: BufferedWriter, names: Sequence[str], columns: Sequence[str], delimiter: str) -> None:
        super().__init__(file, names)
        self._delimiter = _text(delimiter)
        head = delimiter.join(_quoted(name, delimiter) for name in [*columns, *names])
        file.write(f"{head}\n".encode())

    def _parts(self, lines: pa.Array, probabilities: Sequence[pa.Array]) -> Parts:
        return [lines, *(part for values in probabilities for part in (self._delimiter, values))]


class JsonLines(LineOutput):
    """JSON objects, one a line, with the probabilities as their last keys."""

    def _parts(self, lines: pa.Array, probabilities: Sequence[pa.Array]) -> Parts:
        for name in self._names:
            _check_absent(lines, name)
        texts = pc.ascii_rtrim_whitespace(lines.view(pa.string()))
        bodies = pc.ascii_rtrim_whitespace(pc.binary_slice(texts.view(pa.binary()), 0, -1).view(pa.string()))
        bodies = bodies.view(pa.binary())
        empty = pc.equal(pc.ascii_ltrim_whitespace(bodies.view(pa.string())).view(pa.binary()), _text("{"))
        parts: Parts = [bodies, pc.if_else(empty, _text(""), _text(","))]
        for place, (name, values) in enumerate(zip(self._names, probabilities, strict=True)):
            parts += [_text(f"{',' if place else ''}{json.dumps(name, ensure_ascii=False)}:"), values]
        return [*parts, _text("}")]


@contextlib.contextmanager
def delimited_lines(path: Path, names: Sequence[str], columns: Sequence[str], delimiter: str) -> Generator[LineOutput]:
    """:class:`DelimitedLines` that appear at ``path`` when they are whole."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        yield DelimitedLines(file, names, columns, delimiter)


@contextlib.contextmanager
def json_lines(path: Path, names: Sequence[str]) -> Generator[LineOutput]:
    """:class:`JsonLines` that appear at ``path`` when they are whole."""
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        yield JsonLines(file, names)


def _check_absent(lines: pa.Array, name: str) -> None:
    """Refuse rows that have the key ``name`` already; a match of its text may stand in a value, so a look decides."""
    suspects = lines.filter(pc.match_substring(lines, json.dumps(name, ensure_ascii=False).encode()))
    for line in _texts(suspects):
        if name in json.loads(line):
            raise DataError(f"a row has the key {name!r} already: {line[:200]}", "rename it")


def _texts(lines: pa.Array) -> Iterator[str]:
    return (line.decode("utf-8", errors="replace") for line in lines.to_pylist())


def _quoted(name: str, delimiter: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"' if any(mark in name for mark in (delimiter, '"', "\n", "\r")) else name


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text.encode(), pa.binary())
