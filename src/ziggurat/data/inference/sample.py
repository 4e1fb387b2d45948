"""Samples some logs and detects their format from their bytes, which is enough to infer what the columns are.

Up to 32 MiB are read completely. Of larger text files, four ranges spread over each file are read, because logs change
with time. Of larger Parquet files, row groups spread over the files are read. Of compressed text, only the beginning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

import polars as pl
import pyarrow as pa

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.inference.columnar_sample import sample_columnar
from ziggurat.data.inference.csv_sample import sample_csv
from ziggurat.data.inference.encoding import FoundEncoding
from ziggurat.data.inference.json_sample import flatten_objects
from ziggurat.data.inference.libsvm import MAX_ROWS, read_libsvm
from ziggurat.data.inference.nested import flatten
from ziggurat.data.inference.one_object import refuse_one_object
from ziggurat.data.inference.text_sample import SAMPLE_RANGES, TextParts, open_as_text, read_parts
from ziggurat.data.inference.unreadable import Unreadable, merged, readable_objects
from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.columnar_formats import ColumnarSource
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.file_magic import HEAD_BYTES
from ziggurat.data.readers.json_lines.records_kind import RecordsKind, find_records_kind
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.partitions import folder_values, shared_keys
from ziggurat.data.readers.source_files import UTF_8, SourceFile
from ziggurat.data.readers.sql.duckdb import MAGIC as DUCK
from ziggurat.data.readers.sql.duckdb import MAGIC_AT, DuckdbSource
from ziggurat.data.readers.sql.sqlite import MAGIC, SqliteSource
from ziggurat.data.readers.text.blocks import read_head

FormatName = Literal["csv", "parquet", "arrow", "orc", "sqlite", "duckdb", "jsonl", "libsvm", "frame"]

SAMPLE_BYTES = 32 << 20
SUFFIXES: dict[str, FormatName] = {
    ".parquet": "parquet", ".pq": "parquet", ".orc": "orc",
    ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "sqlite", ".db3": "sqlite", ".duckdb": "duckdb", ".ddb": "duckdb",
    ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow", ".arrows": "arrow",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".libsvm": "libsvm", ".svm": "libsvm", ".libfm": "libsvm", ".fm": "libsvm", ".libffm": "libsvm", ".ffm": "libsvm",
    ".tsv": "csv", ".csv": "csv",
}  # fmt: skip


_MAGIC: dict[bytes, FormatName] = {
    b"PAR1": "parquet",
    b"ARROW1\0": "arrow",
    b"FEA1": "arrow",
    b"ORC": "orc",
    MAGIC: "sqlite",
}
_COLUMNAR: dict[FormatName, type[ColumnarSource]] = {
    "sqlite": SqliteSource,
    "duckdb": DuckdbSource,
    "parquet": ParquetSource,
    "arrow": ArrowSource,
    "orc": OrcSource,
}
MOST_FOLDER_FILES = 24
"""Most files of folders called ``key=value`` that are sampled, spread over all of them."""
_JSON_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LogSample:
    """Some rows of a log.

    Attributes:
        format: the format of its files.
        frame: the sampled rows; cells of untyped text formats are strings, empty cells are null.
        total_rows: rows of all files, counted or estimated from their size; None if neither is possible.
        complete: whether the frame holds every row of the files.
        dialect: how delimited text is written.
        header: whether the CSV has a header.
        renamed: whether the CSV's columns have other names than those in its header, or no header.
        encoding: the encoding of text.
        columns: libsvm field names, if the entries have fields.
        numeric: libsvm columns of numbers.
        records: how the JSON objects are written.
        table: the table of a database.
        left_out: column or path -> why no feature can be made of it, for what the frame does not hold.
        notes: column or path -> what was done to its values.
        unreadable: the examined rows that cannot be read; the frame does not hold them.
    """

    format: FormatName
    frame: pl.DataFrame
    total_rows: int | None
    complete: bool
    dialect: Dialect = field(default_factory=Dialect)
    header: bool = True
    renamed: bool = False
    encoding: FoundEncoding = field(default_factory=lambda: FoundEncoding(UTF_8))
    columns: tuple[str, ...] | None = None
    numeric: tuple[str, ...] = ()
    records: RecordsKind = "lines"
    table: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    unreadable: Unreadable = field(default_factory=Unreadable)

    @property
    def examined(self) -> int:
        """Number of rows that were looked at."""
        return self.frame.height + self.unreadable.count


def is_sidecar(path: PurePath) -> bool:
    """Whether a file in a folder of logs was written by ziggurat itself, with information about the logs."""
    return path.name == "dataset.json" or path.name.endswith(".truth.json")


def detect_format(file: SourceFile) -> FormatName:
    """Detects the format by the first bytes, then by the suffix, then by the first lines; CSV by default."""
    with file.open() as stream:
        magic = stream.read(HEAD_BYTES)
    for name, kind in _MAGIC.items():
        if magic.startswith(name):
            return kind
    if magic[MAGIC_AT:].startswith(DUCK):
        return "duckdb"
    if file.format_suffix in SUFFIXES:
        found = SUFFIXES[file.format_suffix]
        if found in _COLUMNAR and file.compression is not None:
            raise DataError(
                f"{file.path}: {found.capitalize()} within {file.compression} data cannot be read in place",
                f"unpack it first; {found.capitalize()} is compressed inside: {file.stored}",
            )
        return found
    head = read_head(file, 64 << 10, _last_line_end).data.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    lines = [line for line in head if line.strip()][:20]
    if lines and (all(line.lstrip().startswith("{") for line in lines) or find_records_kind(file) == "array"):
        return "jsonl"
    if lines and all(re.fullmatch(r"[-+.\d]+(\s+\d+(:[-+.eE\d]+){1,2})+\s*", line.partition("#")[0]) for line in lines):
        return "libsvm"
    return "csv"


def read_sample(files: Sequence[SourceFile], limit_bytes: int = SAMPLE_BYTES, table: str | None = None) -> LogSample:
    """Samples ``files``, which must all be of one format; ``table`` is that of databases to read.

    Raises:
        DataError: the files are of several formats, a file cannot be read or holds no rows, or a CSV header is not
            UTF-8, or names a column twice.
    """
    sample_files = _sample_folders if shared_keys(files) else _sample
    return sample_files(files, limit_bytes, table)


def _sample_folders(files: Sequence[SourceFile], limit_bytes: int, table: str | None) -> LogSample:
    """Samples files in folders called ``key=value``, some of them, each by itself; keys become columns of text."""
    count = min(len(files), MOST_FOLDER_FILES)
    chosen = [files[len(files) * k // count] for k in range(count)]
    samples = [_sample([file], limit_bytes // count, table) for file in chosen]
    frames: list[pl.DataFrame] = []
    notes = dict(samples[0].notes)
    for file, sample in zip(chosen, samples, strict=True):
        values = {key: folder_values(file)[key] for key in shared_keys(files) if key not in sample.frame.columns}
        notes |= {key: f"from the names of the folders {key}=…" for key in values}
        columns = [pl.lit(value, pl.String).alias(key) for key, value in values.items()]
        frames.append(sample.frame.with_columns(columns))
    try:
        frame = pl.concat(frames, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"{files[0].path} and others: a column has values of several kinds in them ({error})",
            "write the column alike in all files, or run `ziggurat init` on files of one kind",
        ) from error
    known = [sample.total_rows for sample in samples]
    rows = None
    if None not in known:
        size, chosen_size = sum(file.size_bytes for file in files), sum(file.size_bytes for file in chosen)
        rows = round(sum(filter(None, known)) * (size / chosen_size if count < len(files) else 1))
    complete = count == len(files) and all(sample.complete for sample in samples)
    left_out = {name: reason for sample in samples for name, reason in sample.left_out.items()}
    unreadable = merged(sample.unreadable for sample in samples)
    return replace(
        samples[0],
        frame=frame,
        total_rows=rows,
        complete=complete,
        left_out=left_out,
        notes=notes,
        unreadable=unreadable,
    )


def _sample(files: Sequence[SourceFile], limit_bytes: int, table: str | None) -> LogSample:
    formats: dict[PurePath, FormatName] = {file.path: detect_format(file) for file in files}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{path.name} ({kind})" for path, kind in formats.items())
        raise DataError(f"files of several formats: {listed}", "run `ziggurat init` on files of one format")
    kind = next(iter(formats.values()))
    if table is not None and kind not in ("sqlite", "duckdb"):
        raise ConfigError(f"--table {table}: {files[0].path} is no database, but {kind}", "leave --table out")
    columnar = _COLUMNAR.get(kind)
    if columnar is not None:
        sample = _columnar(kind, columnar, files, limit_bytes, table)
    else:
        files, encoding = open_as_text(files)
        records = find_records_kind(files[0]) if kind == "jsonl" else "lines"
        files = [replace(file, records=records) for file in files]
        if kind == "csv":
            found = sample_csv(files, limit_bytes)
            parts = found.parts
            sample = LogSample("csv", found.frame, None, parts.complete, found.dialect, found.header, found.renamed)
            sample = replace(sample, unreadable=found.unreadable)
        else:
            limits = {"libsvm": limit_bytes // 4, "jsonl": min(limit_bytes, _JSON_BYTES)}
            parts = read_parts(files, limits.get(kind, limit_bytes))
            if kind == "jsonl":
                sample = _json_lines(parts)
            else:
                sample = _libsvm(b"".join(part.data for part in parts.parts), parts.complete, files)
        rows = _total_rows(files, sample, parts.stored_bytes)
        sample = replace(sample, total_rows=rows, encoding=encoding, records=records)
    if sample.frame.height == 0 and sample.unreadable.count:
        raise DataError(
            f"{files[0].path}: no row can be read as {kind}: {sample.unreadable.first}",
            'write each row as an object: {"user": 7, "click": 1}' if kind == "jsonl" else "name the files of the log",
        )
    if sample.frame.height == 0:
        raise DataError(
            f"{files[0].path}: holds no rows that can be read as {kind}", "name files with at least one row"
        )
    broken = next((name for name in sample.frame.columns if "\0" in name), None)
    if broken is not None:
        raise DataError(f"{files[0].path}: a column's name holds NUL: {broken!r}", "give it another name in the file")
    return sample


def _total_rows(files: Sequence[SourceFile], sample: LogSample, sampled_bytes: int) -> int:
    """Returns the number of rows, estimated from the share of stored bytes in the sample; never fewer than its rows."""
    if sample.complete:
        return sample.examined
    rows = sample.examined * sum(file.size_bytes for file in files) / max(1, sampled_bytes)
    return max(sample.examined, round(rows))


def _last_line_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _json_lines(parts: TextParts) -> LogSample:
    objects, unreadable = readable_objects(parts)
    if len(objects) <= 1 and parts.complete and len(parts.parts) == 1:
        refuse_one_object(parts.parts[0])
    flat = flatten_objects(objects)
    found = LogSample("jsonl", flat.frame, None, parts.complete, left_out=flat.left_out, notes=flat.notes)
    return replace(found, unreadable=unreadable)


def _libsvm(text: bytes, complete: bool, files: Sequence[SourceFile]) -> LogSample:
    found = read_libsvm(text, str(files[0].path), complete and len(files) == 1)
    complete = complete and found.frame.height < MAX_ROWS
    return LogSample("libsvm", found.frame, None, complete, columns=found.columns, numeric=found.numeric)


def sample_table(table: pa.Table, limit_bytes: int = SAMPLE_BYTES) -> LogSample:
    """Samples rows in memory: all of them, or ranges that are spread over them."""
    rows = table.num_rows
    kept = max(1, min(rows, rows * limit_bytes // max(1, table.nbytes)))
    if kept < rows:
        size = max(1, kept // SAMPLE_RANGES)
        starts = [(rows - size) * part // (SAMPLE_RANGES - 1) for part in range(SAMPLE_RANGES)]
        table = pa.concat_tables([table.slice(start, size) for start in starts])
    flat = flatten(table)
    return LogSample("frame", flat.frame, rows, kept == rows, left_out=flat.left_out, notes=flat.notes)


def _columnar(
    kind: FormatName, columnar: type[ColumnarSource], files: Sequence[SourceFile], limit_bytes: int, table: str | None
) -> LogSample:
    config = columnar.model_validate({"files": [], **({} if table is None else {"table": table})})
    found = sample_columnar(files, config, limit_bytes)
    flat = found.flat
    return LogSample(
        kind, flat.frame, found.rows, found.complete, table=table, left_out=flat.left_out, notes=flat.notes
    )
