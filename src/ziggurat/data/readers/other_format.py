"""Finds the source for files of a format other than the run's training files, by suffix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ziggurat.core.errors import DataError
from ziggurat.data.readers.arrow.reader import ArrowSource
from ziggurat.data.readers.csv.reader import CsvSource
from ziggurat.data.readers.file_heads import AnySource
from ziggurat.data.readers.frame.reader import FrameSource
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.json_lines.records_kind import find_records_kind
from ziggurat.data.readers.orc.reader import OrcSource
from ziggurat.data.readers.parquet.reader import ParquetSource
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.sql.duckdb import DuckdbSource
from ziggurat.data.readers.sql.sqlite import SqliteSource
from ziggurat.data.readers.suffixes import format_suffix

_PLAIN = {
    ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".pq": "parquet",
    ".sqlite": "sqlite", ".sqlite3": "sqlite", ".duckdb": "duckdb",
    ".arrow": "arrow", ".ipc": "arrow", ".feather": "arrow", ".arrows": "arrow", ".orc": "orc",
}  # fmt: skip

KNOWN_SUFFIXES = tuple(_PLAIN)
"""The suffixes that say in which format a file is."""

_DELIMITED = {".csv", ".tsv"}
"""If all of the run's own files end in one of these, the other suffix means the other delimiter."""


def config_for_format(files: Sequence[SourceFile], config: AnySource | FrameSource) -> AnySource:
    """Returns a default source for the format of ``files``; ``config`` itself if their suffixes match or are unknown.

    A declared type gives a value the same id in every format, so a run trained on Parquet can predict CSV as well.
    The rules for missing values are those of ``config``.

    Raises:
        DataError: the files are of several formats.
    """
    formats = {_format(file, config): file for file in files}
    if len(formats) > 1:
        shown = " and ".join(f"{file.path} ({name or config.name})" for name, file in formats.items())
        raise DataError(f"files of several formats: {shown}", "predict the files of each format by themselves")
    missing = config.model_dump(include={"null_values", "nan_is_missing", "infinity_is_missing"})
    match next(iter(formats)):
        case "csv":
            return CsvSource.model_validate({"files": [], **missing})
        case "tsv":
            return CsvSource.model_validate({"files": [], "delimiter": "\t", **missing})
        case "parquet":
            return ParquetSource.model_validate({"files": [], **missing})
        case "arrow":
            return ArrowSource.model_validate({"files": [], **missing})
        case "sqlite":
            return SqliteSource.model_validate({"files": [], **missing})
        case "duckdb":
            return DuckdbSource.model_validate({"files": [], **missing})
        case "orc":
            return OrcSource.model_validate({"files": [], **missing})
        case "jsonl":
            records = find_records_kind(files[0])
            return JsonLinesSource.model_validate({"files": [], "records": records, **missing})
        case _:
            if isinstance(config, FrameSource):
                raise DataError(
                    f"{files[0].path}: cannot tell its format, and the run was trained on rows in memory",
                    f"name it with one of these endings: {', '.join(_PLAIN)}",
                )
            return config


def _format(file: SourceFile, config: AnySource | FrameSource) -> str | None:
    """Returns the format indicated by the suffix; None for the config's own or an unknown one."""
    suffix = file.format_suffix
    if suffix not in config.SUFFIXES:
        return _PLAIN.get(suffix)
    own = {format_suffix(Path(name)) for name in config.files}
    return _PLAIN[suffix] if suffix in _DELIMITED and own == _DELIMITED - {suffix} else None
