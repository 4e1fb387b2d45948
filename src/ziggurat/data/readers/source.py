"""The ``source`` section of a config and how to open it. This is the only module that knows every reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Annotated

import pydantic

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.cells.text import CellRules
from ziggurat.data.readers.columnar.reader import ColumnarReader
from ziggurat.data.readers.columnar_formats import columnar_format
from ziggurat.data.readers.csv.reader import CsvParser, CsvSource
from ziggurat.data.readers.file_heads import AnySource, read_file_head
from ziggurat.data.readers.frame.reader import WHAT, Frame, FrameSource
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.libsvm.reader import LibsvmParser, LibsvmSource
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.partitions import PartitionedSource, shared_keys
from ziggurat.data.readers.reader import BLOCK_BYTES, THREADS, RawSource, TextConfig, TextSource
from ziggurat.data.readers.source_files import SourceFile, resolve_files
from ziggurat.data.readers.sql.duckdb import DuckdbSource
from ziggurat.data.readers.sql.sqlite import SqliteSource

SourceConfig = Annotated[
    CsvSource
    | ParquetSource
    | ArrowSource
    | OrcSource
    | SqliteSource
    | DuckdbSource
    | JsonLinesSource
    | LibsvmSource
    | FrameSource,
    pydantic.Field(discriminator="name"),
]
"""Any source; its ``name`` selects the format: csv, parquet, arrow, orc, sqlite, duckdb, jsonl, libsvm or frame."""


def open_source(
    config: AnySource | FrameSource,
    folder: PurePath,
    schema: RawSchema,
    files: Sequence[str] | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
    threads: int = THREADS,
    frame: Frame | None = None,
) -> RawSource:
    """Resolves the files of a source, checks the head of each, and returns their reader.

    Args:
        config: the source.
        folder: the folder, or its URL, to which relative file names refer.
        schema: the columns to deliver.
        files: names to use instead of the config's own, such as the validation and test files of a split.
        block_bytes: approximate bytes of text, or of decoded Parquet, in a block; memory use is a small multiple of it.
        threads: number of text blocks parsed concurrently.
        frame: rows in memory to read in place of the files.

    Raises:
        DataError: a file is missing, empty or unreadable, or its layout does not match the config and the schema.
    """
    rules = CellRules() if isinstance(config, LibsvmSource) else config.cell_rules
    if frame is not None:
        frame.check(column.source for column in schema.columns)
        return ColumnarReader([frame.file], frame.open, WHAT, schema, rules, block_bytes)
    if isinstance(config, FrameSource):
        raise DataError(
            "data.source: its rows are in memory (name: frame)",
            "pass them: ziggurat.prepare(experiment, frame) or ziggurat.train(experiment, frame)",
        )
    found = resolve_files(config.files if files is None else files, folder, config.SUFFIXES)
    if isinstance(config, CsvSource | LibsvmSource):
        _check_no_vectors(found[0], schema)
    if isinstance(config, TextConfig):
        found = config.opened_as(found)
    keys = _folder_keys(found, config, schema)
    if not keys:
        return _open(config, found, schema, block_bytes, threads)
    inner = RawSchema(tuple(column for column in schema.columns if column.name not in keys))
    if not inner.columns:
        raise DataError(
            f"{found[0].path}: every column is a key of the folders: {', '.join(keys)}",
            "use at least one column of the files",
        )
    return PartitionedSource(_open(config, found, inner, block_bytes, threads), schema, keys, rules)


def _check_no_vectors(file: SourceFile, schema: RawSchema) -> None:
    """Validates that no vectors are to be read from text.

    Raises:
        DataError: one is.
    """
    name = next((column.source for column in schema.columns if column.vector is not None), None)
    if name is not None:
        raise DataError(
            f"{file.path}, column {name!r}: is declared `kind: vector`, and vectors are not read from text",
            "write the rows as Parquet, Arrow, ORC or JSON, each with a list of numbers; or, if its cells are lists of "
            "ids, declare it `kind: bag` or `sequence` with their `delimiter`",
        )


def _folder_keys(files: Sequence[SourceFile], config: AnySource, schema: RawSchema) -> list[str]:
    """Returns the columns that are keys of folders, and not columns of the files."""
    shared = shared_keys(files)
    wanted = [column.name for column in schema.columns if column.vector is None and column.name in shared]
    if not wanted:
        return []
    head = read_file_head(files[0], config)
    return [name for name in wanted if not head.holds(name)]


def _open(
    config: AnySource, found: Sequence[SourceFile], schema: RawSchema, block_bytes: int, threads: int
) -> RawSource:
    match config:
        case CsvSource():
            return TextSource(found, lambda file: CsvParser(file, config, schema), schema, block_bytes, threads)
        case JsonLinesSource():
            return TextSource(found, lambda file: JsonLinesParser(file, config, schema), schema, block_bytes, threads)
        case LibsvmSource():
            block_bytes = max(1, int(block_bytes * config.block_share))
            return TextSource(found, lambda file: LibsvmParser(file, config, schema), schema, block_bytes, threads)
        case _:
            open_file, what = columnar_format(config)
            return ColumnarReader(found, open_file, what, schema, config.cell_rules, block_bytes)
