"""A sample of some logs and their format, found by looking at the bytes: enough to guess what the columns are.

A file of up to 32 MiB is read whole. Of a larger text file four stretches from beginning to end are read, for logs
change with time; of a larger Parquet file, row groups spread likewise; of compressed text, the beginning.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.core.errors import DataError
from ziggurat.data.inference.header import alike, find_delimiter, is_header
from ziggurat.data.inference.libsvm import MOST_ROWS, read_libsvm
from ziggurat.data.readers.csv.header import read_layout
from ziggurat.data.readers.source_files import COMPRESSION, SourceFile
from ziggurat.data.readers.text.blocks import cut_blocks, read_head
from ziggurat.data.readers.text.records import RecordRules

FormatName = Literal["csv", "parquet", "jsonl", "libsvm"]

SAMPLE_BYTES = 32 << 20
STRETCHES = 4
SUFFIXES: dict[str, FormatName] = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".libsvm": "libsvm", ".svm": "libsvm", ".libfm": "libsvm", ".fm": "libsvm", ".libffm": "libsvm", ".ffm": "libsvm",
    ".tsv": "csv", ".csv": "csv",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSample:
    """Some rows of a log.

    Attributes:
        format: of its files.
        frame: the rows; text formats without types of their own as strings, empty cells null.
        rows_total: rows of all files, counted or estimated from their size; None where neither is possible.
        whole: the frame holds every row.
        delimiter: of CSV.
        header: whether CSV has one.
        spaces: CSV cells begin with a space, as in ``1, 2``.
        newlines: whether a quoted value goes over a line's end.
        columns: libsvm's names of fields, where entries have fields.
        numeric: libsvm's columns of numbers.
    """

    format: FormatName
    frame: pl.DataFrame
    rows_total: int | None
    whole: bool
    delimiter: str = ","
    header: bool = True
    spaces: bool = False
    newlines: bool = False
    columns: tuple[str, ...] | None = None
    numeric: tuple[str, ...] = ()


def is_sidecar(path: Path) -> bool:
    """Whether a file in a folder of logs is one that ziggurat itself wrote about them."""
    return path.name == "dataset.json" or path.name.endswith(".truth.json")


def detect_format(file: SourceFile) -> FormatName:
    """By the first bytes where they say it, by the suffix else, CSV where nothing speaks against it."""
    with file.path.open("rb") as stream:
        magic = stream.read(4)
    if magic == b"PAR1":
        return "parquet"
    suffix = (file.path.with_suffix("") if file.path.suffix in COMPRESSION else file.path).suffix.lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    head = read_head(file, 64 << 10, _last_line_end).data.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    lines = [line for line in head if line.strip()][:20]
    if lines and all(line.lstrip().startswith("{") for line in lines):
        return "jsonl"
    if lines and all(re.fullmatch(r"[-+.\d]+(\s+\d+(:[-+.eE\d]+){1,2})+\s*", line.partition("#")[0]) for line in lines):
        return "libsvm"
    return "csv"


def read_sample(files: Sequence[SourceFile], limit_bytes: int = SAMPLE_BYTES) -> LogSample:
    """Sample ``files``, which are of one format.

    Raises:
        DataError: files of several formats, a file that cannot be read or holds no rows; a CSV header that is not
            UTF-8, or that names a column twice or not at all.
    """
    formats = {file.path: detect_format(file) for file in files}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{path.name} ({kind})" for path, kind in formats.items())
        raise DataError(f"files of several formats: {listed}", "run `ziggurat init` on files of one format")
    kind = next(iter(formats.values()))
    if kind == "parquet":
        sample = _parquet(files, limit_bytes)
    else:
        sampled = _alike(files) if kind == "csv" else files
        text, whole = _stretches(sampled, limit_bytes // 4 if kind == "libsvm" else limit_bytes)
        whole = whole and len(sampled) == len(files)
        sample = (
            _csv(text, whole, files[0])
            if kind == "csv"
            else _json_lines(text, whole)
            if kind == "jsonl"
            else _libsvm(text, whole, files)
        )
        sample = replace(sample, rows_total=_rows_of(files, sample, len(text)))
    if sample.frame.height == 0:
        raise DataError(
            f"{files[0].path}: holds no rows that can be read as {kind}", "name files with at least one row"
        )
    return sample


def _rows_of(files: Sequence[SourceFile], sample: LogSample, sampled_bytes: int) -> int | None:
    if sample.whole:
        return sample.frame.height
    if any(file.path.suffix in COMPRESSION for file in files):
        return None
    return round(sample.frame.height * sum(file.size_bytes for file in files) / max(1, sampled_bytes))


def _last_line_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _stretches(files: Sequence[SourceFile], limit_bytes: int) -> tuple[bytes, bool]:
    """Whole lines from the files, and whether that is all there is. The first line is the first file's first."""
    share = max(1 << 16, limit_bytes // min(len(files), STRETCHES))
    chosen = files if len(files) <= STRETCHES else [files[len(files) * k // STRETCHES] for k in range(STRETCHES)]
    pieces: list[bytes] = []
    whole = len(chosen) == len(files)
    for number, file in enumerate(chosen):
        head = read_head(file, share, _last_line_end)
        data = head.data.removeprefix(b"\xef\xbb\xbf")
        if number > 0:
            first, _, rest = data.partition(b"\n")
            data = rest if pieces[0].startswith(first.rstrip(b"\r")) else data  # a repeated header
        pieces.append(data if data.endswith(b"\n") else data + b"\n")
        if head.last:
            continue
        whole = False
        if file.path.suffix not in COMPRESSION:
            for part in range(1, STRETCHES):
                offset = file.size_bytes * part // STRETCHES
                for block in cut_blocks(file, offset, share // STRETCHES, _last_line_end):
                    pieces.append(block.data[block.data.find(b"\n") + 1 :])
                    break
    return b"".join(pieces), whole


def _alike(files: Sequence[SourceFile]) -> Sequence[SourceFile]:
    chosen = files if len(files) <= STRETCHES else [files[len(files) * k // STRETCHES] for k in range(STRETCHES)]
    head = read_head(files[0], 1 << 16, _last_line_end).data.decode("utf-8-sig", "replace")
    return alike(chosen, find_delimiter(head.splitlines()[:200])) if head.strip() else files


def _csv(text: bytes, whole: bool, file: SourceFile) -> LogSample:
    lines = text[: 1 << 18].decode("utf-8", "replace").splitlines()[:200]
    delimiter = find_delimiter(lines)
    first_end = text.find(b"\n") + 1
    first = next(csv.reader([lines[0]], delimiter=delimiter))
    names = [f"column_{number}" for number in range(1, len(first) + 1)]

    def parse(data: bytes) -> pl.DataFrame:
        return pl.read_csv(
            io.BytesIO(data), separator=delimiter, has_header=False, new_columns=names, infer_schema=False,
            truncate_ragged_lines=True, encoding="utf8-lossy", ignore_errors=True,
        )  # fmt: skip

    try:
        body = parse(text[first_end:]) if text[first_end:].strip() else parse(text).clear()
        header = is_header(first, body, file.path)
        frame = body if header else parse(text)
    except pl.exceptions.PolarsError as error:
        raise DataError(
            f"cannot be read as CSV with delimiter {delimiter!r}: {error}", "check the file's quotes"
        ) from error
    newlines = any(bool(frame[name].str.contains("\n", literal=True).any()) for name in frame.columns)
    if header:
        read_layout(file, RecordRules(delimiter.encode(), newlines), header=True, columns=None, needed=())
        frame.columns = [name.strip() for name in first]
    spaces = sum(line.count(delimiter + " ") for line in lines) > 0.8 * sum(line.count(delimiter) for line in lines)
    return LogSample("csv", frame, None, whole, delimiter, header, spaces and len(first) > 1, newlines)


def _json_lines(text: bytes, whole: bool) -> LogSample:
    try:
        frame = pl.read_ndjson(io.BytesIO(text), infer_schema_length=None, ignore_errors=True)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"cannot be read as JSON lines: {error}", "write one JSON object a line") from error
    return LogSample("jsonl", frame, None, whole)


def _libsvm(text: bytes, whole: bool, files: Sequence[SourceFile]) -> LogSample:
    found = read_libsvm(text, str(files[0].path), whole and len(files) == 1)
    whole = whole and found.frame.height < MOST_ROWS
    return LogSample("libsvm", found.frame, None, whole, columns=found.columns, numeric=found.numeric)


def _parquet(files: Sequence[SourceFile], limit_bytes: int) -> LogSample:
    groups: list[tuple[Path, int]] = []
    rows = size = 0
    for file in files:
        try:
            metadata = pq.read_metadata(file.path)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{file.path}: not a readable Parquet file ({error})", "copy or write it again") from error
        rows += metadata.num_rows
        for group in range(metadata.num_row_groups):
            groups.append((file.path, group))
            size += metadata.row_group(group).total_byte_size
    keep = max(1, min(len(groups), len(groups) * limit_bytes // max(1, size)))
    chosen = [groups[len(groups) * k // keep] for k in range(keep)]
    tables = [pq.ParquetFile(path).read_row_group(group) for path, group in chosen]
    frame = pl.from_arrow(pa.concat_tables(tables, promote_options="permissive"))
    assert isinstance(frame, pl.DataFrame)
    return LogSample("parquet", frame, rows, keep == len(groups))
