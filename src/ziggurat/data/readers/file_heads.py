"""Reads the head of a file to find its columns, and whether it has any rows."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.csv.header import read_first_records
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.libsvm.reader import LibsvmSource
from ziggurat.data.readers.parquet.reader import ParquetSource, open_parquet
from ziggurat.data.readers.rejection_reasons import as_text
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head
from ziggurat.data.readers.text.records import RecordRules, Records

AnySource = CsvSource | ParquetSource | JsonLinesSource | LibsvmSource

_CSV_BYTES = 64 * 2**10
_JSON_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FileHead:
    """The columns of a file, and whether it has rows.

    Attributes:
        file: the file.
        names: the columns in file order; for JSON lines, the keys in the first mebibyte; for libsvm, none.
        has_rows: whether a row follows the header.
    """

    file: SourceFile
    names: tuple[str, ...]
    has_rows: bool


def read_file_head(file: SourceFile, config: AnySource) -> FileHead:
    """Reads the head of ``file``. If its layout differs from ``config``, there are no names; the reader reports why.

    Raises:
        DataError: the file cannot be opened, or is empty once decompressed.
    """
    match config:
        case CsvSource():
            return _csv(file, config)
        case JsonLinesSource():
            return _json_lines(file)
        case ParquetSource():
            with open_parquet(file) as parquet:
                return FileHead(file, tuple(parquet.schema_arrow.names), parquet.metadata.num_rows > 0)
        case LibsvmSource():
            return FileHead(file, (), True)


def check_columns(path: object, names: Sequence[str], needed: RawSchema, optional: Sequence[str] = ()) -> None:
    """Validates that rows have the columns which the run's features need.

    Args:
        path: where the rows come from, for the message.
        names: the existing columns.
        needed: the columns of the features.
        optional: needed columns that may be absent.

    Raises:
        DataError: columns are missing; the message lists them, the existing columns and the nearest matches.
    """
    missing = [name for name in needed.names if name not in names and name not in optional]
    if not missing:
        return
    free = [name for name in names if name not in needed.names]
    close = {name: nearest(name, free) for name in missing}
    guesses = [f"rename {found!r} to {name!r}" for name, found in close.items() if found is not None]
    add = "add the missing columns, with empty cells where the values are unknown"
    plural = "" if len(missing) == 1 else "s"
    raise DataError(
        f"{path}: no column{plural} {_listed(map(repr, missing))}, which the run's features are made of; "
        f"there are: {_listed(names)}",
        f"{', '.join(guesses)}? Or {add}" if guesses else add,
    )


def _listed(names: Iterable[str], limit: int = 30) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f", … ({len(names) - limit} more)" if len(names) > limit else "")


def _csv(file: SourceFile, config: CsvSource) -> FileHead:
    first_records = read_first_records(file, config.records, _CSV_BYTES)
    records = first_records.records
    has_rows = len(records) > config.header or not first_records.whole_file
    if not config.header:
        return FileHead(file, tuple(config.columns or ()), has_rows)
    first = records[0] if len(records) else b"\0"
    cells = config.records.split(first)
    found = () if isinstance(cells, str) or b"\0" in first or b"\r" in first else tuple(map(as_text, cells))
    if config.columns is not None and found and abs(len(found) - len(config.columns)) <= 1:
        found = tuple(config.columns)
    return FileHead(file, found, has_rows)


def _json_lines(file: SourceFile) -> FileHead:
    block = read_head(file, _JSON_BYTES, RecordRules().last_record_end)
    records = Records.of(block.data.removeprefix(codecs.BOM_UTF8), 1, RecordRules())
    keys: dict[str, None] = {}
    for row in range(len(records)):
        try:
            value = json.loads(records[row])
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            keys.update(dict.fromkeys(value))
    return FileHead(file, tuple(keys), True)
