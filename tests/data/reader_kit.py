"""Helpers that write small logs and read them completely, for the tests of the readers."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.blocks import BadRow, Position
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.reader import RawSource
from ziggurat.data.readers.source import open_source

INTEGER, FLOAT, TEXT = ValueType.INTEGER, ValueType.FLOAT, ValueType.TEXT


@dataclass(frozen=True)
class Reading:
    """Everything read from a source: rows as tuples, their lines, the bad rows, and the end of each block."""

    rows: list[tuple[Any, ...]]
    lines: list[int]
    bad: list[BadRow]
    ends: list[Position]

    @property
    def bad_lines(self) -> list[int]:
        return [row.line for row in self.bad]

    def kinds(self) -> list[tuple[int, str | None, str]]:
        """Returns (line, column, kind of rejection) of every bad row."""
        return [(row.line, row.column, row.reason.partition(":")[0]) for row in self.bad]


def schema(**columns: ValueType | RawColumn) -> RawSchema:
    """Returns a schema: ``schema(user=INTEGER, tags=many(TEXT))``."""
    return RawSchema(
        tuple(
            RawColumn(name, kind)
            if isinstance(kind, ValueType)
            else RawColumn(name, kind.type, kind.many, kind.delimiter, kind.required)
            for name, kind in columns.items()
        )
    )


def many(kind: ValueType, delimiter: str = "|", required: bool = False) -> RawColumn:
    return RawColumn("", kind, many=True, delimiter=delimiter, required=required)


def required(kind: ValueType) -> RawColumn:
    return RawColumn("", kind, required=True)


def read(source: RawSource, start: Position = Position(), end: Position | None = None) -> Reading:  # noqa: B008
    """Reads ``source`` from ``start`` to ``end`` (default: all of it) and checks the invariants of every block."""
    reading = Reading([], [], [], [])
    for block in source.blocks(start, end):
        block.table.validate(full=True)
        assert len(block.lines) == block.table.num_rows
        reading.rows.extend(zip(*block.table.to_pydict().values(), strict=True))
        reading.lines.extend(block.lines.tolist())
        reading.bad.extend(block.bad)
        reading.ends.append(block.end)
    return reading


def read_csv(
    folder: Path, text: str | bytes, columns: RawSchema, /, block_bytes: int = 2**20, **config: Any
) -> Reading:
    """Writes ``text`` to a CSV file and reads it."""
    path = folder / "log.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    source = open_source(CsvSource(files=["log.csv"], **config), folder, columns, block_bytes=block_bytes)
    return read(source)


def lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


@contextmanager
def as_nobody(folder: Path) -> Iterator[None]:
    """Drops superuser rights, which override permissions, but keeps ``folder`` reachable."""
    if os.geteuid() != 0:
        yield
        return
    closed = {path: path.stat().st_mode for path in (folder, *folder.parents) if not path.stat().st_mode & stat.S_IXOTH}
    for path in closed:
        path.chmod(0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, mode in closed.items():
            path.chmod(mode)
