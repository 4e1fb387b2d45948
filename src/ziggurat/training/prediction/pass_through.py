"""How the rows of files to predict reach the output: read twice in step, once for the features, once as they stand.

===========  =====================================  ==========================  ===================================
from \\ to    CSV, TSV                               JSON lines                  Parquet
===========  =====================================  ==========================  ===================================
CSV          lines as they are; cell by cell where  cells as strings            features typed, other cells as text
             the delimiter or the columns change
JSON lines   keys as cells                          lines as they are           features and numbers typed,
                                                                                other keys as text
Parquet      values as text, nested ones as JSON    values, nested ones too     every column in its own type
libsvm       the fields, typed                      the fields, typed           the fields, typed
===========  =====================================  ==========================  ===================================
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.blocks import arrow_type
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.csv.rows import CsvRows
from ziggurat.data.readers.file_heads import AnySource, FileHead, check_columns, read_file_head
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.json_lines.rows import JsonRows
from ziggurat.data.readers.libsvm.reader import LibsvmSource
from ziggurat.data.readers.other_format import config_for_format
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.parquet.rows import ParquetRows
from ziggurat.data.readers.raw_rows import BlockRows, LineRows, RawRows
from ziggurat.data.readers.reader import RawSource
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import SourceFile, resolve_files
from ziggurat.data.readers.text.records import RecordRules
from ziggurat.training.prediction.line_output import delimited_lines, json_lines
from ziggurat.training.prediction.table_output import Output, open_output

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Files on their way to an output.

    Attributes:
        files: all of them.
        names: their columns.
        source: reads what the features need from the files that hold rows; None where no file does.
        rows: the rows as they stand in the files.
        open: the output for a path and the names of the probabilities; takes tables of ``rows`` with these appended.
    """

    files: tuple[SourceFile, ...]
    names: tuple[str, ...]
    source: RawSource | None
    rows: RawRows
    open: Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Output]]


def open_passage(config: AnySource, files: Sequence[str], needed: RawSchema, suffix: str) -> PassThrough:
    """Look at the heads of ``files`` and choose the way their rows take.

    Args:
        config: how the run's own files are read; files whose suffixes name another format are read as that.
        files: paths, folders or globs.
        needed: what the features are made of.
        suffix: of the output.

    Raises:
        DataError: a file that cannot be read as declared, or lacks columns; all of these are named.
    """
    found = resolve_files(files, Path(), config.SUFFIXES)
    config = config_for_format(found, config)
    heads = [read_file_head(file, config) for file in found]
    optional = config.optional if isinstance(config, JsonLinesSource) else ()
    for head in heads:
        if _is_understood(head, needed):
            check_columns(head.file.path, head.names, needed, optional)
    filled = [str(head.file.path) for head in heads if head.has_rows or not _is_understood(head, needed)]
    read = _all_of(config, needed) if isinstance(config, LibsvmSource) else needed
    source = open_source(config, Path(), read, filled) if filled else None
    rows, open_ = _way(config, heads, read, suffix)
    names = dict.fromkeys(name for head in heads for name in head.names)
    return PassThrough(found, tuple(names or read.names), source, rows, open_)


def _is_understood(head: FileHead, needed: RawSchema) -> bool:
    """Whether the names look like names; else the reader says what is wrong, such as the delimiter."""
    if set(needed.names) & set(head.names):
        return True
    return len(head.names) > 1 and not any(name.replace(".", "", 1).isdecimal() for name in head.names)


def _way(
    config: AnySource, heads: Sequence[FileHead], needed: RawSchema, suffix: str
) -> tuple[RawRows, Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Output]]]:
    files = [head.file for head in heads]
    typed = needed if suffix == ".parquet" else None
    delimiters = {c.name: c.delimiter for c in needed.columns if c.many and not c.brackets}  # lists else: as JSON
    match config:
        case CsvSource():
            layouts = {head.names for head in heads}
            if config.delimiter == _DELIMITERS.get(suffix) and len(layouts) == 1:
                open_ = partial(delimited_lines, columns=layouts.pop(), delimiter=config.delimiter)
                return LineRows(files, config.records), open_
            rows = CsvRows(files, config, {str(head.file.path): head.names for head in heads}, typed)
        case JsonLinesSource():
            if suffix == ".jsonl":
                return LineRows(files, RecordRules()), json_lines
            names = {str(head.file.path): (*head.names, *needed.names) for head in heads}
            rows = JsonRows(files, names, delimiters, typed, _common_keys(config, heads, needed))
        case ParquetSource():
            rows = ParquetRows(files)
        case LibsvmSource():
            rows = BlockRows(pa.schema([(column.name, arrow_type(column)) for column in needed.columns]))
    return rows, partial(_table_output, schema=rows.schema, delimiters=delimiters)


def _common_keys(config: JsonLinesSource, heads: Sequence[FileHead], needed: RawSchema) -> tuple[RawColumn, ...]:
    """The keys that all files with rows have, of one type, beyond those that the features need."""
    files = [JsonLinesParser(head.file, config, needed).other_columns() for head in heads if head.has_rows]
    return tuple(column for column in files[0] if all(column in other for other in files[1:])) if files else ()


def _table_output(
    path: Path, names: Sequence[str], schema: pa.Schema, delimiters: dict[str, str]
) -> contextlib.AbstractContextManager[Output]:
    for name in names:
        schema = schema.append(pa.field(name, pa.float32()))
    return open_output(path, schema, delimiters)


def _all_of(config: LibsvmSource, needed: RawSchema) -> RawSchema:
    """The features' columns of libsvm rows, and behind them their label and other fields."""
    fields = [RawColumn(name, ValueType.INTEGER, many=True) for name in config.columns or ()]
    before = [RawColumn("label", ValueType.FLOAT)] if "label" not in needed.names else []
    return RawSchema((*before, *needed.columns, *(field for field in fields if field.name not in needed.names)))
