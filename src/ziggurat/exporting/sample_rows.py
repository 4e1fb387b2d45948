"""Raw rows of a run's log: a few of them as examples of what a request may hold, more to tell users from items."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import ZigguratError
from ziggurat.core.files import write_json
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.cells.times import EPOCH_UNITS, ISO
from ziggurat.data.readers.source import open_source
from ziggurat.training.experiment import Experiment

SAMPLE_ROWS = 8
_READ_ROWS = 50_000
_BLOCK_BYTES = 1 << 22


def read_rows(experiment: Experiment, schema: RawSchema) -> tuple[pa.Table | None, str]:
    """Returns the first rows of the log that can be read, and why there are none if so.

    Args:
        experiment: the config, which names the files.
        schema: the columns of features.
    """
    data = experiment.data
    try:
        source = open_source(data.source, data.folder, schema, block_bytes=_BLOCK_BYTES, threads=1)
        block = next((each for each in source.blocks() if each.table.num_rows), None)
    except (ZigguratError, OSError) as error:
        return None, str(error).splitlines()[0]
    if block is None:
        return None, "the log has no rows"
    return block.table.slice(0, _READ_ROWS), ""


def write_sample(path: Path, table: pa.Table | None, schema: RawSchema) -> None:
    """Writes a few rows as JSON, with their cells as the log has them: the first of those that lack least, none without
    a table."""
    rows: list[dict[str, Any]] = []
    if table is not None:
        missing = np.sum([_missing(column) for column in table.columns], axis=0)
        rows = table.take(np.sort(np.argsort(missing, kind="stable")[:SAMPLE_ROWS])).to_pylist()
    write_json(path, {"rows": [_as_in_log(row, schema) for row in rows]})


def _missing(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Returns which cells are empty, or hold an empty list."""
    nested = pa.types.is_nested(column.type)
    return np.array([not each for each in column.to_pylist()]) if nested else column.is_null().to_numpy()


def _as_in_log(row: dict[str, Any], schema: RawSchema) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for column in schema.columns:
        value = row[column.name]
        if column.vector is None:
            cells[column.name] = _time(column, value) if column.type is ValueType.TIME else value
        else:
            cells.setdefault(column.vector.column, [None] * column.vector.length)[column.vector.index] = value
    for column in {each.vector.column for each in schema.columns if each.vector is not None}:
        if all(value is None for value in cells[column]):
            cells[column] = None
    return cells


def _time(column: RawColumn, seconds: float | None) -> Any:
    if seconds is None:
        return None
    if column.time_format in EPOCH_UNITS:
        return round(seconds * EPOCH_UNITS[column.time_format])
    at = datetime.fromtimestamp(seconds, UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ") if column.time_format == ISO else at.strftime(column.time_format)
