"""Tables written piece by piece to CSV, TSV, JSON lines or Parquet; the file appears when it is whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from ziggurat.core.errors import ConfigError
from ziggurat.core.files import atomic_file

LIST_DELIMITER = "|"


class Output(Protocol):
    """Takes tables of one schema, in order."""

    def write(self, table: pa.Table) -> None:
        """Append rows."""


@contextlib.contextmanager
def open_output(path: Path) -> Generator[Output]:
    """An output of the format that the suffix names.

    Raises:
        ConfigError: a suffix that is none of .csv, .tsv, .jsonl, .parquet.
        DataError: full disk or missing permission; nothing is left behind.
    """
    kinds = {".csv": _Csv, ".tsv": _Tsv, ".jsonl": _JsonLines, ".parquet": _Parquet}
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"{path}: cannot tell the output format from {path.suffix!r}", f"end it in one of {', '.join(kinds)}"
        )
    with atomic_file(path) as temporary:
        output = kind(temporary)
        try:
            yield output
        finally:
            output.close()


class _Csv:
    delimiter = ","

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("wb")
        self._first = True

    def write(self, table: pa.Table) -> None:
        flat = _flat(table)
        options = pacsv.WriteOptions(include_header=self._first, delimiter=self.delimiter, quoting_style="needed")
        pacsv.write_csv(flat, self._file, options)
        self._first = False

    def close(self) -> None:
        self._file.close()


class _Tsv(_Csv):
    delimiter = "\t"


class _JsonLines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, table: pa.Table) -> None:
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        frame.write_ndjson(self._file)

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        plain = _decoded(table)
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, plain.schema)
        self._writer.write_table(plain)

    def close(self) -> None:
        if self._writer is None:
            self._path.touch()
        else:
            self._writer.close()


def _decoded(table: pa.Table) -> pa.Table:
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(field.type.value_type))
    return table


def _flat(table: pa.Table) -> pa.Table:
    """Lists as delimited text, dictionaries decoded: what CSV can hold."""
    plain = _decoded(table)
    frame = pl.from_arrow(plain)
    assert isinstance(frame, pl.DataFrame)
    lists = [name for name, kind in frame.schema.items() if isinstance(kind, pl.List)]
    if not lists:
        return plain
    joined = [pl.col(name).cast(pl.List(pl.String)).list.join(LIST_DELIMITER) for name in lists]
    return frame.with_columns(joined).to_arrow()
