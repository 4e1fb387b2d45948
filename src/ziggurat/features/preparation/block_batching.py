"""Combines raw blocks into parts: checks their rows, determines their splits and encodes their columns.

This is the half of pass 1 that processes rows; :mod:`staging <ziggurat.features.preparation.staging>` saves the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.data.encoded.split import TRAIN
from ziggurat.data.readers.blocks import BadRow, Position
from ziggurat.data.readers.source import RawSource
from ziggurat.features.bracket_check import check_brackets
from ziggurat.features.checks import check_rows
from ziggurat.features.columns import Codes, encode_column, numbers
from ziggurat.features.inputs.of_features import with_derived_columns
from ziggurat.features.preparation.journal import JournalEntry
from ziggurat.features.preparation.parts import StagedPart, narrow
from ziggurat.features.preparation.splitting import sampling_columns, split_columns
from ziggurat.features.preparation_plan import Preparation

PART_ROWS = 131_072
PART_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SplitSource:
    """A source and the split of its rows, if files decide the split."""

    source: RawSource
    split: int = TRAIN


@dataclass(slots=True)
class CheckedPart:
    """The good rows of consecutive blocks, which will be one part, and its journal entry."""

    entry: JournalEntry
    tables: list[pa.Table] = field(default_factory=list[pa.Table])
    targets: list[dict[str, npt.NDArray[Any]]] = field(default_factory=list[dict[str, npt.NDArray[Any]]])
    bad: list[BadRow] = field(default_factory=list[BadRow])

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def full(self) -> bool:
        return self.rows >= PART_ROWS or sum(table.nbytes for table in self.tables) >= PART_BYTES


@dataclass(frozen=True, slots=True)
class Encoding:
    """A part whose columns a pool is encoding."""

    numbers: dict[str, Future[npt.NDArray[np.float32 | np.float64]]]
    ids: dict[str, Future[tuple[pa.Array, Codes]]]
    targets: dict[str, npt.NDArray[Any]]
    bad: list[BadRow]
    entry: JournalEntry

    def result(self) -> StagedPart:
        """Waits for the columns and returns the part."""
        return StagedPart(
            {name: future.result() for name, future in self.numbers.items()},
            {name: future.result() for name, future in self.ids.items()},
            self.targets,
        )


def read_parts(
    plan: Preparation, item: SplitSource, number: int, start: Position, end: Position | None = None
) -> Iterator[CheckedPart]:
    """Reads the rows of a source from ``start`` to ``end`` in parts; the last one may be small, or empty.

    Args:
        plan: the plan of the preparation.
        item: the source.
        number: number of the source, for the journal.
        start: where to start reading.
        end: where to stop, as in :meth:`~ziggurat.data.readers.reader.RawSource.blocks`. If it is None, which is the
            end of the source, the first block is checked for undeclared lists in brackets. A caller that splits a
            source into file ranges must do that check itself.
    """
    source = item.source
    part = CheckedPart(JournalEntry(0, number, start, 0, 0))
    for number_of_block, block in enumerate(source.blocks(start, end)):
        if end is None and number_of_block == 0:
            check_brackets(block.table, plan.features)
        checked = check_rows(block, plan.targets, plan.tables)
        splits = split_columns(plan.data.split, item.split, block, checked)
        part.tables.append(with_derived_columns(checked.table, plan.features))
        part.targets.append({**checked.targets, **splits, **sampling_columns(plan.data.negatives, checked)})
        part.bad.extend(checked.bad)
        done_bytes = bytes_before(source, block.file) + block.source_bytes
        part.entry = JournalEntry(part.rows, number, block.end, done_bytes, 0)
        if part.full:
            yield part
            part = CheckedPart(JournalEntry(0, number, block.end, done_bytes, 0))
    finished = end is None or end.file == len(source.files)
    done_bytes = source.total_bytes if finished else part.entry.done_bytes
    reached = part.entry.position if end is None else end
    part.entry = JournalEntry(part.rows, number, reached, done_bytes, 0, finished)
    yield part


def encode(plan: Preparation, part: CheckedPart, pool: ThreadPoolExecutor) -> Encoding:
    """Starts to encode the columns of a part."""
    if not part.tables:
        return Encoding({}, {}, {}, part.bad, part.entry)
    table = pa.concat_tables(part.tables)
    names = list(part.targets[0])
    return Encoding(
        {name: pool.submit(_narrow_numbers, table.column(name)) for name in plan.staged_numbers},
        {name: pool.submit(encode_column, table.column(name)) for name in plan.id_columns},
        {name: np.concatenate([targets[name] for targets in part.targets]) for name in names},
        part.bad,
        part.entry,
    )


def bytes_before(source: RawSource, file: str) -> int:
    """Returns the total size of the source's files before ``file``."""
    paths = [str(path) for path in source.paths]
    return sum(item.size_bytes for item in source.files[: paths.index(file)])


def _narrow_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float32 | np.float64]:
    return narrow(numbers(column))
