"""Writes one table in every format that holds nested columns, with the source that reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from pyarrow import feather, ipc

from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet.reader import ParquetSource

Source = ParquetSource | ArrowSource | OrcSource | JsonLinesSource
COLUMNAR = ("log.parquet", "log.arrow", "log.arrows", "log.feather", "log.orc")
FORMATS = (*COLUMNAR, "log.jsonl")


def write(path: Path, table: pa.Table, rows: int = 10**9) -> None:
    """Writes a table; ``rows`` is the number of rows of a group, where the format has groups."""
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path, row_group_size=rows)
        case ".arrow":
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows)
        case ".arrows":
            with ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows)
        case ".feather":
            feather.write_feather(table, str(path), chunksize=min(rows, 2**16))
        case ".orc":
            pyarrow.orc.write_table(table, path, stripe_size=1024 if rows < 10**6 else 2**26)
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), encoding="utf-8")


def source(name: str, **settings: Any) -> Source:
    """Returns the source of a file."""
    kinds = {".parquet": ParquetSource, ".orc": OrcSource, ".jsonl": JsonLinesSource}
    return kinds.get(Path(name).suffix, ArrowSource)(files=[name], **settings)
