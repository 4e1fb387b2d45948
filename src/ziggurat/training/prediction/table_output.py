"""Writes tables, block by block, to CSV, TSV, JSON lines or Parquet; the file appears when it is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.core.errors import ConfigError
from ziggurat.core.temporary import unnamed_file
from ziggurat.training.prediction.text_columns import check_writable, csv_frame, json_frame

_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


class Output(Protocol):
    """Writes tables of the schema it was opened with, in order."""

    def write(self, table: pa.Table) -> None:
        """Appends rows."""


@contextlib.contextmanager
def open_output(path: Path, schema: pa.Schema, delimiters: Mapping[str, str] | None = None) -> Generator[Output]:
    """Yields an output in the format of the path's suffix; without rows the file is an empty table of ``schema``.

    Args:
        path: the file.
        schema: the schema of the file; dictionary columns of the tables are cast to it.
        delimiters: list column -> the delimiter of its values in CSV and TSV. Other lists, and objects, are written as
            JSON.

    Raises:
        ConfigError: the suffix is none of .csv, .tsv, .jsonl, .parquet.
        DataError: the disk is full, permission is missing, or the format cannot hold a column. No file is left behind.
    """
    suffix = output_suffix(path)
    if suffix != ".parquet":
        check_writable(schema)
    with unnamed_file(path) as temporary:
        match suffix:
            case ".parquet":
                output = _Parquet(temporary, schema)
            case ".jsonl":
                output = _JsonLines(temporary, schema)
            case _:
                output = _Delimited(temporary, schema, "\t" if suffix == ".tsv" else ",", delimiters or {})
        try:
            yield output
        finally:
            output.close()


def output_suffix(path: Path) -> str:
    """Returns the suffix of an output, which names its format, in lower case.

    Raises:
        ConfigError: the suffix is none of .csv, .tsv, .jsonl, .parquet.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ConfigError(
            f"{path}: cannot tell the output format from {path.suffix!r}", f"end it in one of {', '.join(_SUFFIXES)}"
        )
    return suffix


class _Delimited:
    """Writes CSV or TSV; a value with a delimiter, a quote or a line end is quoted, a missing one is empty."""

    def __init__(self, path: Path, schema: pa.Schema, delimiter: str, list_delimiters: Mapping[str, str]) -> None:
        self._schema = schema
        self._delimiter = delimiter
        self._list_delimiters = list_delimiters
        self._file = path.open("wb")
        self._append(schema.empty_table(), header=True)

    def write(self, table: pa.Table) -> None:
        self._append(_cast(table, self._schema), header=False)

    def _append(self, table: pa.Table, header: bool) -> None:
        frame = csv_frame(table, self._list_delimiters)
        unquoted = [pl.when(pl.col(pl.String) != "").then(pl.col(pl.String)).name.keep()]  # polars quotes "", not null
        frame.with_columns(unquoted).write_csv(self._file, include_header=header, separator=self._delimiter)

    def close(self) -> None:
        self._file.close()


class _JsonLines:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = path.open("wb")

    def write(self, table: pa.Table) -> None:
        json_frame(_cast(table, self._schema)).write_ndjson(self._file)

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(_cast(table, self._schema))

    def close(self) -> None:
        self._writer.close()


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table if table.schema.equals(schema) else table.cast(schema)
