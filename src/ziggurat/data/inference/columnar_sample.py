"""Samples columnar files: rows of groups spread over the files, or the first rows of files without groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.data.inference.nested import FlatSample, flatten
from ziggurat.data.readers.columnar.file import OpenColumnar, explained_reads
from ziggurat.data.readers.columnar_formats import ColumnarSource, columnar_format
from ziggurat.data.readers.source_files import SourceFile

MOST_ROWS = 2**20
"""Most rows that are taken from one group, which may declare many more than it has bytes."""
_LEAST_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class ColumnarSample:
    """A flat sample; how many rows the files hold, None if that is not declared; and whether these are all of them."""

    flat: FlatSample
    rows: int | None
    complete: bool


def sample_columnar(files: Sequence[SourceFile], config: ColumnarSource, limit_bytes: int) -> ColumnarSample:
    """Samples ``files``, of which about ``limit_bytes`` are read.

    Raises:
        DataError: a file cannot be read, or the types of a column in two files have no common type.
    """
    open_file, what = columnar_format(config)
    groups: list[tuple[SourceFile, int, int]] = []
    total: int | None = 0
    size = 0
    for file in files:
        with open_file(file, ()) as opened, explained_reads(file, what):
            found = opened.groups() if len(opened.schema) else []
            row_bytes = max(1, opened.row_bytes(None))
            total = None if total is None or opened.rows is None else total + opened.rows
        size += sum(group_bytes for _, group_bytes in found) if found else file.size_bytes
        groups += [(file, number, row_bytes) for number in range(len(found))] or [(file, -1, row_bytes)]
    keep = max(1, min(len(groups), len(groups) * limit_bytes // max(1, size)))
    chosen = [groups[len(groups) * k // keep] for k in range(keep)]
    tables: list[pa.Table] = []
    whole = keep == len(groups)
    for file, group, row_bytes in chosen:
        rows = min(MOST_ROWS, max(_LEAST_ROWS, 4 * limit_bytes // keep // row_bytes))
        table, ended = _first_rows(file, open_file, what, group, rows)
        tables.append(table)
        whole &= ended
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"{files[0].path} and others: a column has types in them that cannot be joined ({error})",
            "write the column alike in all files, or name files of one kind",
        ) from error
    complete = whole and (total is None or table.num_rows == total)
    return ColumnarSample(flatten(table), table.num_rows if complete else total, complete)


def _first_rows(file: SourceFile, open_file: OpenColumnar, what: str, group: int, rows: int) -> tuple[pa.Table, bool]:
    """Returns the first rows of a group, or of the file if it has no groups, and whether these are all."""
    with open_file(file, ()) as opened, explained_reads(file, what):
        groups = (group, group + 1) if group >= 0 else (0, None)
        parts: list[pa.RecordBatch] = []
        count = 0
        batches = opened.batches(None, min(rows, 2**16), *groups)
        for batch in batches:
            parts.append(batch.slice(0, rows - count))
            count += parts[-1].num_rows
            if count >= rows:
                ended = parts[-1].num_rows == batch.num_rows and next(batches, None) is None
                return pa.Table.from_batches(parts), ended
        return pa.Table.from_batches(parts, None if parts else opened.schema), True
