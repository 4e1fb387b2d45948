"""The ``source`` section of a config and how to open it. This is the only module that knows every reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pydantic

from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.columnar.reader import ColumnarReader
from ziggurat.data.readers.columnar_formats import columnar_format
from ziggurat.data.readers.csv.reader import CsvParser, CsvSource
from ziggurat.data.readers.json_lines.reader import JsonLinesParser, JsonLinesSource
from ziggurat.data.readers.libsvm.reader import LibsvmParser, LibsvmSource
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.reader import BLOCK_BYTES, THREADS, RawSource, TextSource
from ziggurat.data.readers.source_files import resolve_files

SourceConfig = Annotated[
    CsvSource | ParquetSource | ArrowSource | OrcSource | JsonLinesSource | LibsvmSource,
    pydantic.Field(discriminator="name"),
]
"""Any source; its ``name`` selects the format: csv, parquet, arrow, orc, jsonl or libsvm."""


def open_source(
    config: CsvSource | ParquetSource | ArrowSource | OrcSource | JsonLinesSource | LibsvmSource,
    folder: Path,
    schema: RawSchema,
    files: Sequence[str] | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
    threads: int = THREADS,
) -> RawSource:
    """Resolves the files of a source, checks the head of each, and returns their reader.

    Args:
        config: the source.
        folder: the folder to which relative file names refer.
        schema: the columns to deliver.
        files: names to use instead of the config's own, such as the validation and test files of a split.
        block_bytes: approximate bytes of text, or of decoded Parquet, in a block; memory use is a small multiple of it.
        threads: number of text blocks parsed concurrently.

    Raises:
        DataError: a file is missing, empty or unreadable, or its layout does not match the config and the schema.
    """
    found = resolve_files(config.files if files is None else files, folder, config.SUFFIXES)
    if not isinstance(config, ParquetSource):
        found = config.opened_as(found)
    match config:
        case CsvSource():
            return TextSource(found, lambda file: CsvParser(file, config, schema), schema, block_bytes, threads)
        case JsonLinesSource():
            return TextSource(found, lambda file: JsonLinesParser(file, config, schema), schema, block_bytes, threads)
        case LibsvmSource():
            block_bytes = max(1, int(block_bytes * config.block_share))
            return TextSource(found, lambda file: LibsvmParser(file, config, schema), schema, block_bytes, threads)
        case ParquetSource() | ArrowSource() | OrcSource():
            open_file, what = columnar_format(config)
            return ColumnarReader(found, open_file, what, schema, config.cell_rules, block_bytes)
