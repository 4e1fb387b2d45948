"""Tables written piece by piece to CSV, TSV, JSON lines or Parquet; the file appears when it is whole."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.core.errors import ConfigError
from ziggurat.core.files import atomic_file
from ziggurat.training.prediction.text_columns import check_writable, in_cells, in_json

_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


class Output(Protocol):
    """Takes tables of the schema it was opened with, in order."""

    def write(self, table: pa.Table) -> None:
        """Append rows."""


@contextlib.contextmanager
def open_output(path: Path, schema: pa.Schema, delimiters: Mapping[str, str] | None = None) -> Generator[Output]:
    """An output of the format that the suffix names; without a row it is an empty table of ``schema``.

    Args:
        path: where to write.
        schema: of the tables to come, whose dictionary columns are cast to it.
        delimiters: list column -> what joins its values in CSV and TSV; other lists, and objects, are written as JSON.

    Raises:
        ConfigError: a suffix that is none of .csv, .tsv, .jsonl, .parquet.
        DataError: full disk, missing permission, or a column that the format cannot hold; nothing is left behind.
    """
    suffix = output_suffix(path)
    if suffix != ".parquet":
        check_writable(schema)
    with atomic_file(path) as temporary:
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
    """The suffix that names the format of an output, in lower case.

    Raises:
        ConfigError: it is none of .csv, .tsv, .jsonl, .parquet.
    """
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ConfigError(
            f"{path}: cannot tell the output format from {path.suffix!r}", f"end it in one of {', '.join(_SUFFIXES)}"
        )
    return suffix


class _Delimited:
    """CSV or TSV: a value is quoted only where it holds a delimiter, a quote or a line end; missing is empty."""

    def __init__(self, path: Path, schema: pa.Schema, delimiter: str, list_delimiters: Mapping[str, str]) -> None:
        self._schema = schema
        self._delimiter = delimiter
        self._list_delimiters = list_delimiters
        self._file = path.open("wb")
        self._append(schema.empty_table(), header=True)

    def write(self, table: pa.Table) -> None:
        self._append(_of(table, self._schema), header=False)

    def _append(self, table: pa.Table, header: bool) -> None:
        frame = in_cells(table, self._list_delimiters)
        unquoted = [pl.when(pl.col(pl.String) != "").then(pl.col(pl.String)).name.keep()]  # polars quotes "", not null
        frame.with_columns(unquoted).write_csv(self._file, include_header=header, separator=self._delimiter)

    def close(self) -> None:
        self._file.close()


class _JsonLines:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = path.open("wb")

    def write(self, table: pa.Table) -> None:
        in_json(_of(table, self._schema)).write_ndjson(self._file)

    def close(self) -> None:
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(_of(table, self._schema))

    def close(self) -> None:
        self._writer.close()


def _of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    return table if table.schema.equals(schema) else table.cast(schema)
