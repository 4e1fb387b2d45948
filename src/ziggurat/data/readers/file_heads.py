"""Reads the head of a file to find its columns, and whether it has any rows."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.columnar.file import ColumnarFile
from ziggurat.data.readers.columnar.paths import resolve
from ziggurat.data.readers.columnar_formats import ColumnarSource, columnar_format
from ziggurat.data.readers.csv.header import read_first_records
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.json_lines.paths import find_steps
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.libsvm.reader import LibsvmSource
from ziggurat.data.readers.rejection_reasons import as_text
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import read_head
from ziggurat.data.readers.text.records import RecordRules, Records

AnySource = CsvSource | ColumnarSource | JsonLinesSource | LibsvmSource

_CSV_BYTES = 64 * 2**10
_JSON_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class FileHead:
    """The columns of a file, and whether it has rows.

    Attributes:
        file: the file.
        names: the columns in file order; for JSON lines, the keys in the first mebibyte; for libsvm, none.
        has_rows: whether a row follows the header.
        holds: whether it has a column, given its name or path.
    """

    file: SourceFile
    names: tuple[str, ...]
    has_rows: bool
    holds: Callable[[str], bool]


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
        case LibsvmSource():
            return _named(file, (), True)
        case _:
            open_file, _ = columnar_format(config)
            with open_file(file, ()) as opened:
                return _columnar(file, opened)


def check_columns(
    path: object,
    names: Sequence[str],
    needed: RawSchema,
    optional: Sequence[str] = (),
    holds: Callable[[str], bool] | None = None,
) -> None:
    """Validates that rows have the columns which the run's features need.

    Args:
        path: where the rows come from, for the message.
        names: the existing columns.
        needed: the columns of the features.
        optional: needed columns that may be absent.
        holds: whether a column exists, given its name or path; default: whether it is one of ``names``.

    Raises:
        DataError: columns are missing; the message lists them, the existing columns and the nearest matches.
    """
    holds = holds or names.__contains__
    sources = dict.fromkeys(column.source for column in needed.columns)
    missing = [name for name in sources if not holds(name) and name not in optional]
    if not missing:
        return
    free = [name for name in names if name not in sources]
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
        return _named(file, tuple(config.columns or ()), has_rows)
    first = records[0] if len(records) else b"\0"
    cells = config.records.split(first)
    found = () if isinstance(cells, str) or b"\0" in first or b"\r" in first else tuple(map(as_text, cells))
    if config.columns is not None and found and abs(len(found) - len(config.columns)) <= 1:
        found = tuple(config.columns)
    return _named(file, found, has_rows)


def _named(file: SourceFile, names: tuple[str, ...], has_rows: bool) -> FileHead:
    return FileHead(file, names, has_rows, names.__contains__)


def _columnar(file: SourceFile, opened: ColumnarFile) -> FileHead:
    schema = opened.schema
    return FileHead(file, tuple(schema.names), opened.rows != 0, lambda name: resolve(schema, name) is not None)


def _json_lines(file: SourceFile) -> FileHead:
    block = read_head(file, _JSON_BYTES, RecordRules().last_record_end)
    records = Records.of(block.data.removeprefix(codecs.BOM_UTF8), 1, RecordRules())
    objects: list[dict[str, Any]] = []
    for row in range(len(records)):
        try:
            value = json.loads(records[row])
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            objects.append(cast("dict[str, Any]", value))
    keys = dict.fromkeys(key for each in objects for key in each)
    return FileHead(file, tuple(keys), True, lambda name: find_steps(objects, name) is not None)
