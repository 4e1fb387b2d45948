"""The ``source`` of a config, and how it is opened: the one place that knows every reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pydantic

from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.csv.reader import CsvParser, CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.libsvm.reader import LibsvmParser, LibsvmSource
from ziggurat.data.readers.parquet.reader import ParquetReader, ParquetSource
from ziggurat.data.readers.reader import BLOCK_BYTES, THREADS, RawSource, TextSource
from ziggurat.data.readers.source_files import resolve_files

SourceConfig = Annotated[
    CsvSource | ParquetSource | JsonLinesSource | LibsvmSource, pydantic.Field(discriminator="name")
]
"""Any source; its ``name`` says which: csv, parquet, jsonl or libsvm."""


def open_source(
    config: CsvSource | ParquetSource | JsonLinesSource | LibsvmSource,
    folder: Path,
    schema: RawSchema,
    files: Sequence[str] | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
    threads: int = THREADS,
) -> RawSource:
    """Find the files of a source and look at the head of each.

    Args:
        config: what to read.
        folder: where relative names of files begin.
        schema: the columns to deliver.
        files: names to use instead of the config's own, as for the validation and test files of a split.
        block_bytes: about how much text, or decoded Parquet, a block holds; memory is a small multiple of it.
        threads: blocks of text parsed at once.

    Raises:
        DataError: a file that is missing, empty, unreadable, or not laid out as the config and schema say.
    """
    found = resolve_files(config.files if files is None else files, folder, config.SUFFIXES)
    match config:
        case CsvSource():
            return TextSource(found, lambda file: CsvParser(file, config, schema), schema, block_bytes, threads)
        case JsonLinesSource():
            return TextSource(found, lambda file: JsonLinesParser(file, config, schema), schema, block_bytes, threads)
        case LibsvmSource():
            block_bytes = max(1, int(block_bytes * config.block_share))
            return TextSource(found, lambda file: LibsvmParser(file, config, schema), schema, block_bytes, threads)
        case ParquetSource():
            return ParquetReader(found, config, schema, block_bytes)
