"""Samples some logs and detects their format from their bytes, which is enough to infer what the columns are.

Up to 32 MiB are read completely. Of larger text files, four ranges spread over each file are read, because logs change
with time. Of larger Parquet files, row groups spread over the files are read. Of compressed text, only the beginning.
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
from ziggurat.data.inference.header import files_with_same_header, find_delimiter, is_header
from ziggurat.data.inference.libsvm import MAX_ROWS, read_libsvm
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.csv.header import read_layout
from ziggurat.data.readers.csv.record_split import RecordSplitter
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import cut_blocks, read_head

FormatName = Literal["csv", "parquet", "jsonl", "libsvm"]

SAMPLE_BYTES = 32 << 20
SAMPLE_RANGES = 4
GROUP_ROWS = 2**20
"""Most rows that are taken from a row group of a Parquet file."""
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
        format: the format of its files.
        frame: the sampled rows; cells of untyped text formats are strings, empty cells are null.
        total_rows: rows of all files, counted or estimated from their size; None if neither is possible.
        complete: whether the frame holds every row of the files.
        delimiter: the CSV delimiter.
        header: whether the CSV has a header.
        space_after_delimiter: whether CSV cells begin with a space, as in ``1, 2``.
        newlines_in_values: whether a quoted value contains a line end.
        columns: libsvm field names, if the entries have fields.
        numeric: libsvm columns of numbers.
    """

    format: FormatName
    frame: pl.DataFrame
    total_rows: int | None
    complete: bool
    delimiter: str = ","
    header: bool = True
    space_after_delimiter: bool = False
    newlines_in_values: bool = False
    columns: tuple[str, ...] | None = None
    numeric: tuple[str, ...] = ()


def is_sidecar(path: Path) -> bool:
    """Whether a file in a folder of logs was written by ziggurat itself, with information about the logs."""
    return path.name == "dataset.json" or path.name.endswith(".truth.json")


def detect_format(file: SourceFile) -> FormatName:
    """Detects the format by the first bytes, then by the suffix, then by the first lines; CSV by default."""
    with file.stored.open("rb") as stream:
        magic = stream.read(4)
    if magic == b"PAR1":
        return "parquet"
    if file.format_suffix in SUFFIXES:
        return SUFFIXES[file.format_suffix]
    head = read_head(file, 64 << 10, _last_line_end).data.decode("utf-8", "replace").lstrip("\ufeff").splitlines()
    lines = [line for line in head if line.strip()][:20]
    if lines and all(line.lstrip().startswith("{") for line in lines):
        return "jsonl"
    if lines and all(re.fullmatch(r"[-+.\d]+(\s+\d+(:[-+.eE\d]+){1,2})+\s*", line.partition("#")[0]) for line in lines):
        return "libsvm"
    return "csv"


def read_sample(files: Sequence[SourceFile], limit_bytes: int = SAMPLE_BYTES) -> LogSample:
    """Samples ``files``, which must all be of one format.

    Raises:
        DataError: the files are of several formats, a file cannot be read or holds no rows, or a CSV header is not
            UTF-8, names a column twice, or leaves a column without a name.
    """
    try:
        return _sample(files, limit_bytes)
    except csv.Error as error:
        raise DataError(
            f"{files[0].path}: the first lines cannot be read as CSV: {error}",
            "check that it is a text file of records",
        ) from error


def _sample(files: Sequence[SourceFile], limit_bytes: int) -> LogSample:
    formats = {file.path: detect_format(file) for file in files}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{path.name} ({kind})" for path, kind in formats.items())
        raise DataError(f"files of several formats: {listed}", "run `ziggurat init` on files of one format")
    kind = next(iter(formats.values()))
    if kind == "parquet":
        sample = _parquet(files, limit_bytes)
    else:
        sampled = _same_header(files) if kind == "csv" else files
        text, complete = _read_lines(sampled, limit_bytes // 4 if kind == "libsvm" else limit_bytes)
        complete = complete and len(sampled) == len(files)
        sample = (
            _csv(text, complete, files[0])
            if kind == "csv"
            else _json_lines(text, complete)
            if kind == "jsonl"
            else _libsvm(text, complete, files)
        )
        sample = replace(sample, total_rows=_total_rows(files, sample, len(text)))
    if sample.frame.height == 0:
        raise DataError(
            f"{files[0].path}: holds no rows that can be read as {kind}", "name files with at least one row"
        )
    return sample


def _total_rows(files: Sequence[SourceFile], sample: LogSample, sampled_bytes: int) -> int | None:
    if sample.complete:
        return sample.frame.height
    if any(not file.is_plain for file in files):
        return None
    return round(sample.frame.height * sum(file.size_bytes for file in files) / max(1, sampled_bytes))


def _last_line_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _read_lines(files: Sequence[SourceFile], limit_bytes: int) -> tuple[bytes, bool]:
    """Reads whole lines from the files, from the first line on; also returns whether these are all their lines."""
    share = max(1 << 16, limit_bytes // min(len(files), SAMPLE_RANGES))
    chosen = (
        files if len(files) <= SAMPLE_RANGES else [files[len(files) * k // SAMPLE_RANGES] for k in range(SAMPLE_RANGES)]
    )
    parts: list[bytes] = []
    complete = len(chosen) == len(files)
    for number, file in enumerate(chosen):
        head = read_head(file, share, _last_line_end)
        data = head.data.removeprefix(b"\xef\xbb\xbf")
        if number > 0:
            first, _, rest = data.partition(b"\n")
            data = rest if parts[0].startswith(first.rstrip(b"\r")) else data  # a repeated header
        parts.append(data if data.endswith(b"\n") else data + b"\n")
        if head.last:
            continue
        complete = False
        if file.is_plain:
            for part in range(1, SAMPLE_RANGES):
                offset = file.size_bytes * part // SAMPLE_RANGES
                for block in cut_blocks(file, offset, share // SAMPLE_RANGES, _last_line_end):
                    parts.append(block.data[block.data.find(b"\n") + 1 :])
                    break
    return b"".join(parts), complete


def _same_header(files: Sequence[SourceFile]) -> Sequence[SourceFile]:
    chosen = (
        files if len(files) <= SAMPLE_RANGES else [files[len(files) * k // SAMPLE_RANGES] for k in range(SAMPLE_RANGES)]
    )
    head = read_head(files[0], 1 << 16, _last_line_end).data.decode("utf-8-sig", "replace")
    return files_with_same_header(chosen, find_delimiter(head.splitlines()[:200])) if head.strip() else files


def _csv(text: bytes, complete: bool, file: SourceFile) -> LogSample:
    lines = text[: 1 << 18].decode("utf-8", "replace").splitlines()[:200]
    delimiter = find_delimiter(lines)
    first_end = text.find(b"\n") + 1
    if not isinstance(RecordSplitter(delimiter.encode())(text[:first_end].rstrip(b"\r\n")), list):
        raise DataError(
            f"{file.path}, line 1: a quote is opened and not closed in the line; the first line, which may name the "
            "columns, must be whole: no line break within quotes",
            "write the first line without line breaks in its values, or close the quote",
        )
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
    newlines_in_values = any(frame.select(pl.all().str.contains("\n", literal=True).any()).row(0))
    if header:
        read_layout(file, Dialect(delimiter.encode(), newlines_in_values), header=True, columns=None, needed=())
        frame.columns = [name.strip() for name in first]
    space_after_delimiter = sum(line.count(delimiter + " ") for line in lines) > 0.8 * sum(
        line.count(delimiter) for line in lines
    )
    return LogSample(
        "csv", frame, None, complete, delimiter, header, space_after_delimiter and len(first) > 1, newlines_in_values
    )


def _json_lines(text: bytes, complete: bool) -> LogSample:
    try:
        frame = pl.read_ndjson(io.BytesIO(text), infer_schema_length=None, ignore_errors=True)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"cannot be read as JSON lines: {error}", "write one JSON object a line") from error
    return LogSample("jsonl", frame, None, complete)


def _libsvm(text: bytes, complete: bool, files: Sequence[SourceFile]) -> LogSample:
    found = read_libsvm(text, str(files[0].path), complete and len(files) == 1)
    complete = complete and found.frame.height < MAX_ROWS
    return LogSample("libsvm", found.frame, None, complete, columns=found.columns, numeric=found.numeric)


def _head_of_group(path: Path, group: int) -> pa.Table:
    """Returns the first rows of a row group, which may declare many more than it has bytes."""
    try:
        with pq.ParquetFile(path) as parquet:
            batches = parquet.iter_batches(GROUP_ROWS, row_groups=[group])
            first = next(batches, None)
            return parquet.schema_arrow.empty_table() if first is None else pa.Table.from_batches([first])
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})", "copy or write it again") from error


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
    tables = [_head_of_group(path, group) for path, group in chosen]
    frame = pl.from_arrow(pa.concat_tables(tables, promote_options="permissive"))
    assert isinstance(frame, pl.DataFrame)
    return LogSample("parquet", frame, rows, keep == len(groups) and frame.height == rows)
