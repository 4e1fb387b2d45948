"""Passes the rows of files through prediction: they are read twice in parallel, for the features and for the output.

===========  =====================================  ==========================  ===================================
from \\ to    CSV, TSV                               JSON lines                  Parquet
===========  =====================================  ==========================  ===================================
CSV          unchanged lines; cell by cell if the   cells as strings            features typed, other cells as text
             delimiter or the columns change
JSON lines   keys as cells                          unchanged lines             features and numbers typed,
                                                                                other keys as text
columnar     values as text, nested ones as JSON    values, also nested ones    every column in its own type
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
from ziggurat.data.readers.columnar.rows import ColumnarRows
from ziggurat.data.readers.columnar_formats import columnar_format
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.csv.rows import CsvRows
from ziggurat.data.readers.file_heads import AnySource, FileHead, check_columns, read_file_head
from ziggurat.data.readers.frame.reader import FrameSource
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.json_lines.rows import JsonRows
from ziggurat.data.readers.libsvm.reader import LibsvmSource
from ziggurat.data.readers.other_format import KNOWN_SUFFIXES, config_for_format
from ziggurat.data.readers.partitions import PartitionedRows, folder_values, shared_keys
from ziggurat.data.readers.raw_rows import BlockRows, LineRows, RawRows
from ziggurat.data.readers.reader import RawSource, TextConfig
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import SourceFile, resolve_files
from ziggurat.data.readers.text.records import RecordRules
from ziggurat.training.prediction.line_output import delimited_lines, json_lines
from ziggurat.training.prediction.table_output import Output, open_output

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, slots=True)
class PassThrough:
    """The input files of a prediction, and the output that their rows are passed to.

    Attributes:
        files: all files.
        names: their columns.
        source: reads the columns that the features need from the files that hold rows; None if no file does.
        rows: the complete rows of the files.
        open: opens the output, given a path and the names of the probabilities. The output accepts tables of ``rows``
            with the probabilities appended.
    """

    files: tuple[SourceFile, ...]
    names: tuple[str, ...]
    source: RawSource | None
    rows: RawRows
    open: Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Output]]


def open_pass_through(
    config: AnySource | FrameSource, files: Sequence[str], needed: RawSchema, suffix: str
) -> PassThrough:
    """Reads the heads of ``files`` and chooses how their rows are read and written.

    Args:
        config: the source of the run's config; files whose suffixes name another format are read in that format.
        files: paths, folders or globs.
        needed: the columns that the features are made of.
        suffix: suffix of the output.

    Raises:
        DataError: a file cannot be read as declared, or lacks columns; all of these are named.
    """
    resolved = resolve_files(files, Path(), config.SUFFIXES or KNOWN_SUFFIXES)
    config = config_for_format(resolved, config)
    if isinstance(config, TextConfig):
        resolved = config.opened_as(resolved)
    heads = [read_file_head(file, config) for file in resolved]
    optional = config.optional if isinstance(config, JsonLinesSource) else ()
    for head in heads:
        if _has_plausible_names(head, needed):
            values = folder_values(head.file)
            holds = lambda name, head=head, values=values: head.holds(name) or name in values  # noqa: E731
            check_columns(head.file.path, (*head.names, *values), needed, optional, holds)
    keys = _added_keys(heads)
    nonempty = [str(head.file.path) for head in heads if head.has_rows or not _has_plausible_names(head, needed)]
    schema = _all_columns(config, needed) if isinstance(config, LibsvmSource) else needed
    source = open_source(config, Path(), schema, nonempty) if nonempty else None
    rows, open_ = _rows_and_output(config, heads, schema, suffix, keys)
    names = dict.fromkeys(name for head in heads for name in head.names)
    return PassThrough(resolved, (*(names or schema.names), *keys), source, rows, open_)


def _added_keys(heads: Sequence[FileHead]) -> list[str]:
    """Returns the keys of the files' folders that are columns of no file: the output has them after the columns."""
    return [key for key in shared_keys([head.file for head in heads]) if not any(head.holds(key) for head in heads)]


def _has_plausible_names(head: FileHead, needed: RawSchema) -> bool:
    """Returns whether the names look like column names. If not, the reader reports the problem, e.g. the delimiter."""
    if any(head.holds(column.source) for column in needed.columns):
        return True
    return len(head.names) > 1 and not any(name.replace(".", "", 1).isdecimal() for name in head.names)


def _rows_and_output(
    config: AnySource, heads: Sequence[FileHead], needed: RawSchema, suffix: str, keys: Sequence[str]
) -> tuple[RawRows, Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Output]]]:
    """Returns the reader of complete rows and the function that opens the output, as in the module's table."""
    files = [head.file for head in heads]
    needed = RawSchema(tuple(column for column in needed.columns if column.name not in keys))
    everywhere = {name for head in heads for name in head.names}
    own = [c for c in needed.columns if c.vector is None and (c.name in everywhere or "." not in c.name)]
    typed = RawSchema(tuple(own)) if suffix == ".parquet" else None
    delimiters = {c.name: c.delimiter for c in needed.columns if c.many and not c.brackets}  # other lists: JSON
    match config:
        case CsvSource():
            layouts = {head.names for head in heads}
            plain = config.records.is_written_plainly and config.delimiter == _DELIMITERS.get(suffix)
            if plain and len(layouts) == 1:
                open_ = partial(delimited_lines, columns=layouts.pop(), delimiter=config.delimiter)
                return _with_keys(LineRows(files, config.records), open_, files, keys)
            rows = CsvRows(files, config, {str(head.file.path): head.names for head in heads}, typed)
        case JsonLinesSource():
            if suffix == ".jsonl":
                return _with_keys(LineRows(files, RecordRules()), json_lines, files, keys)
            names = {str(head.file.path): (*head.names, *(column.name for column in own)) for head in heads}
            rows = JsonRows(files, names, delimiters, typed, _common_keys(config, heads, needed))
        case LibsvmSource():
            rows = BlockRows(pa.schema([(column.name, arrow_type(column)) for column in needed.columns]))
        case _:
            rows = ColumnarRows(files, *columnar_format(config))
    rows = PartitionedRows(rows, files, keys) if keys else rows
    return rows, partial(_table_output, schema=rows.schema, delimiters=delimiters)


def _with_keys(
    rows: RawRows,
    open_: Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Output]],
    files: Sequence[SourceFile],
    keys: Sequence[str],
) -> tuple[RawRows, Callable[[Path, Sequence[str]], contextlib.AbstractContextManager[Output]]]:
    """Returns whole lines and their output, to which the keys of the files' folders are appended."""
    if not keys:
        return rows, open_
    return PartitionedRows(rows, files, keys), lambda path, names: open_(path, [*keys, *names])


def _common_keys(config: JsonLinesSource, heads: Sequence[FileHead], needed: RawSchema) -> tuple[RawColumn, ...]:
    """Returns the keys that all files with rows have in one type, without those that the features need."""
    files = [JsonLinesParser(head.file, config, needed).other_columns() for head in heads if head.has_rows]
    return tuple(column for column in files[0] if all(column in keys for keys in files[1:])) if files else ()


def _table_output(
    path: Path, names: Sequence[str], schema: pa.Schema, delimiters: dict[str, str]
) -> contextlib.AbstractContextManager[Output]:
    for name in names:
        schema = schema.append(pa.field(name, pa.float32()))
    return open_output(path, schema, delimiters)


def _all_columns(config: LibsvmSource, needed: RawSchema) -> RawSchema:
    """Returns all columns of libsvm rows: the label, the features' columns, and the other fields."""
    fields = [RawColumn(name, ValueType.INTEGER, many=True) for name in config.columns or ()]
    label = [RawColumn("label", ValueType.FLOAT)] if "label" not in needed.names else []
    return RawSchema((*label, *needed.columns, *(field for field in fields if field.name not in needed.names)))
