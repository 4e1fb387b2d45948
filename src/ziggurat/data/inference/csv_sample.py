"""Reads samples of delimited text as a frame of texts, once its dialect and its header are found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Literal

import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv

from ziggurat.core.errors import DataError
from ziggurat.data.inference.dialect import FoundDialect, find_dialect
from ziggurat.data.inference.header import is_header, same_columns
from ziggurat.data.inference.text_sample import TextPart, TextParts, chosen_files, read_parts
from ziggurat.data.inference.unreadable import Unreadable, is_utf8, unreadable_records
from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.csv.header import read_layout
from ziggurat.data.readers.csv.reader import parse_options
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head
from ziggurat.data.readers.text.records import RecordRules, Records

_HEAD_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class CsvSample:
    """Some rows of delimited text.

    Attributes:
        frame: the rows, as texts.
        dialect: how they are written.
        header: whether the first line names the columns.
        renamed: whether the names of the frame's columns differ from those in the header.
        parts: the text they are from.
        unreadable: the rows of it that the frame lacks, as they cannot be read.
    """

    frame: pl.DataFrame
    dialect: Dialect
    header: bool
    renamed: bool
    parts: TextParts
    unreadable: Unreadable


def sample_csv(files: Sequence[SourceFile], limit_bytes: int) -> CsvSample:
    """Reads about ``limit_bytes`` of ``files``.

    Raises:
        DataError: a file cannot be read, files have different columns, or a header names a column twice.
    """
    head = _head_lines(files[0])
    if not head.strip():
        raise DataError(f"{files[0].path}: the file holds no rows, only empty lines", "remove it from `files`")
    if head.count(0) * 10 > len(head):
        raise DataError(
            f"{files[0].path}: the first lines cannot be read as CSV: they are made of NUL bytes",
            "check that it is a text file of records",
        )
    found = find_dialect(head)
    same = same_columns(chosen_files(files), found.dialect)
    sampled = same if len(files) <= len(same) or len(same) < len(chosen_files(files)) else files
    parts = read_parts(sampled, limit_bytes)
    parts = replace(parts, complete=parts.complete and len(sampled) == len(files))
    return _as_frame(files[0], parts, found)


def _head_lines(file: SourceFile) -> bytes:
    data = read_head(file, _HEAD_BYTES, lambda data: data.rfind(b"\n") + 1).data
    return data.removeprefix(b"\xef\xbb\xbf")


def _as_frame(file: SourceFile, parts: TextParts, found: FoundDialect) -> CsvSample:
    dialect, path = found.dialect, file.path
    bodies = [_without_title(part, dialect) for part in parts.parts]
    first_record, header_end = _first_record(bodies[0], dialect)
    first = _cells(first_record, dialect, path)
    names, narrower = _names(first, found, bodies[0][header_end:])
    width = len(names)
    try:
        body, _ = _parse(bodies[0][header_end:], dialect, width)
        if found.commented_header is not None and not is_header(first, body, path):
            header, names = False, list(found.commented_header)
        else:
            header = narrower or is_header(first[:width], body, path)
        if header:
            bodies = [_without_header(data, first_record, dialect) for data in bodies]
        frame, whole = _parse(b"".join(bodies), dialect, width)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"{path}: cannot be read as CSV with delimiter {dialect.delimiter.decode()!r}: {error}",
            "check the file's quotes",
        ) from error
    if dialect.quotes and not dialect.newlines_in_values:
        holds = any(frame.select(pl.all().str.contains("\n", literal=True).any()).row(0)) if frame.height else False
        dialect = replace(dialect, newlines_in_values=holds)
    unreadable = Unreadable() if whole else unreadable_records(parts, dialect, width, header and not narrower)
    if header:
        frame.columns = _completed(names)
        renamed = narrower or frame.columns != first
        columns = frame.columns if renamed else None
        read_layout(file, dialect, header=True, columns=columns, needed=())
        return CsvSample(frame, dialect, True, renamed, parts, unreadable)
    frame.columns = names if found.commented_header is not None else _completed([""] * width, every=True)
    return CsvSample(frame, dialect, False, True, parts, unreadable)


def _without_title(part: TextPart, dialect: Dialect) -> bytes:
    data = part.data
    for _ in range(dialect.skip_lines if part.starts_file else 0):
        data = data.partition(b"\n")[2]
    return data


def _first_record(data: bytes, dialect: Dialect) -> tuple[bytes, int]:
    """Returns the first record, and the offset after it."""
    for head in (data[:_HEAD_BYTES], data):
        whole = head if len(head) == len(data) else head[: dialect.last_record_end(head)]
        records = Records.of(whole, 1, dialect)
        if len(records):
            start = int(records.starts[0])
            return records[0], next((int(end) for end in dialect.ends(whole) if end > start), len(whole))
    return b"", len(data)


def _without_header(data: bytes, header: bytes, dialect: Dialect) -> bytes:
    """Drops the header where the text begins with it."""
    record, end = _first_record(data, dialect)
    return data[end:] if record == header else data


def _cells(record: bytes, dialect: Dialect, path: PurePath) -> list[str]:
    cells = dialect.split(record)
    if isinstance(cells, str) or b"\n" in record:
        raise DataError(
            f"{path}, line 1: a quote is opened and not closed in the line; the first line, which may name the "
            "columns, must be whole: no line break within quotes",
            "write the first line without line breaks in its values, or close the quote",
        )
    return [cell.decode("utf-8", "replace") for cell in cells]


def _names(first: Sequence[str], found: FoundDialect, below: bytes) -> tuple[list[str], bool]:
    """Returns the cells of the first line, with one for a column that it does not name, and whether there is one."""
    words = bool(first) and all(re.search(r"[^\W\d]", cell) for cell in first if cell.strip())
    if words and len(first) > 1 and not first[-1].strip() and found.width == len(first) - 1:
        return list(first[:-1]), True
    if words and all(cell.strip() for cell in first) and found.width == len(first) + 1 and len(first) > 1:
        records = Records.of(below[:_HEAD_BYTES].rpartition(b"\n")[0], 1, found.dialect)
        rows = [found.dialect.split(records[row]) for row in range(min(100, len(records)))]
        whole = [cells for cells in rows if isinstance(cells, list) and len(cells) == found.width]
        ends_empty = all(not cells[-1].strip() for cells in whole)
        return ([*first, ""] if ends_empty else ["", *first]), True
    return list(first), False


def _completed(names: Sequence[str], every: bool = False) -> list[str]:
    """Returns the names; one that is missing, except that of the first column, by its place."""
    return [
        name if name.strip() else (f"column_{place}" if place > 1 or every else "")
        for place, name in enumerate(names, 1)
    ]


def _parse(data: bytes, dialect: Dialect, width: int) -> tuple[pl.DataFrame, bool]:
    """Returns the records that can be split into ``width`` cells, and whether these are all records, and text."""
    names = [f"column_{place}" for place in range(1, width + 1)]
    plain, whole = dialect.rewritten(data), True
    if plain is None:
        whole = False
        plain = dialect.rewritten_where_possible(data)
    if dialect.drops_lines:
        plain = re.sub(rb"\n{2,}", b"\n", plain).lstrip(b"\n")
    if not plain.strip(b"\r\n"):
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String)), whole
    if not dialect.quotes_close(plain):
        plain, whole = dialect.rewritten_where_possible(data), False
    plain, is_text = _text_alone(plain, dialect)
    ragged: list[int] = []

    def skip(row: pacsv.InvalidRow) -> Literal["skip"]:
        ragged.append(row.actual_columns)
        return "skip"

    table = pacsv.read_csv(
        pa.BufferReader(plain),
        pacsv.ReadOptions(column_names=names, block_size=2**30, use_threads=False),
        parse_options(dialect, skip),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=[""], strings_can_be_null=True
        ),
    )
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame, whole and is_text and not ragged


def _text_alone(plain: bytes, dialect: Dialect) -> tuple[bytes, bool]:
    """Returns the records that are UTF-8, and whether all are."""
    if is_utf8(plain):
        return plain, True
    rules = RecordRules(dialect.parsed_delimiter, dialect.newlines_in_values, dialect.parsed_quotes)
    records = Records.of(plain, 1, rules)
    kept = (records[row] for row in range(len(records)))
    return b"".join(record + b"\n" for record in kept if is_utf8(record)), False
