"""Raw blocks gathered into parts: checked, told which split their rows belong to, their columns encoded.

The half of pass 1 that looks at rows; :mod:`staging <ziggurat.features.preparation.staging>` keeps what comes out.
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
from ziggurat.features.preparation.journal import JournalEntry
from ziggurat.features.preparation.parts import StagedPart, narrow
from ziggurat.features.preparation.splitting import split_columns
from ziggurat.features.preparation_plan import Preparation

PART_ROWS = 131_072
PART_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SplitSource:
    """A source and the split that its rows belong to, where the files decide."""

    source: RawSource
    split: int = TRAIN


@dataclass(slots=True)
class CheckedPart:
    """Good rows of consecutive blocks that will be one part, and where reading goes on behind them."""

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
    """A part whose columns are being encoded by a pool."""

    numbers: dict[str, Future[npt.NDArray[np.float32 | np.float64]]]
    ids: dict[str, Future[tuple[pa.Array, Codes]]]
    targets: dict[str, npt.NDArray[Any]]
    bad: list[BadRow]
    entry: JournalEntry

    def result(self) -> StagedPart:
        return StagedPart(
            {name: future.result() for name, future in self.numbers.items()},
            {name: future.result() for name, future in self.ids.items()},
            self.targets,
        )


def gather(
    plan: Preparation, item: SplitSource, number: int, start: Position, end: Position | None = None
) -> Iterator[CheckedPart]:
    """The rows of a source from ``start`` to ``end`` in parts; the last one may be small, or empty.

    Args:
        number: the source's, for the journal.
        end: as in :meth:`~ziggurat.data.readers.reader.RawSource.blocks`. Where it is None, and so the source's end,
            the
            first
            block is looked at for lists in brackets; whoever cuts a source into stretches has done so.
    """
    source = item.source
    gathered = CheckedPart(JournalEntry(0, number, start, 0, 0))
    for number_of_block, block in enumerate(source.blocks(start, end)):
        if end is None and number_of_block == 0:
            check_brackets(block.table, plan.features)
        checked = check_rows(block, plan.targets, plan.tables)
        splits = split_columns(plan.data.split, item.split, block, checked)
        gathered.tables.append(checked.table)
        gathered.targets.append({**checked.targets, **splits})
        gathered.bad.extend(checked.bad)
        done_bytes = bytes_before(source, block.file) + block.source_bytes
        gathered.entry = JournalEntry(gathered.rows, number, block.end, done_bytes, 0)
        if gathered.full:
            yield gathered
            gathered = CheckedPart(JournalEntry(0, number, block.end, done_bytes, 0))
    finished = end is None or end.file == len(source.files)
    done_bytes = source.total_bytes if finished else gathered.entry.done_bytes
    reached = gathered.entry.position if end is None else end
    gathered.entry = JournalEntry(gathered.rows, number, reached, done_bytes, 0, finished)
    yield gathered


def encode(plan: Preparation, gathered: CheckedPart, pool: ThreadPoolExecutor) -> Encoding:
    """Begin to encode the columns of a part."""
    if not gathered.tables:
        return Encoding({}, {}, {}, gathered.bad, gathered.entry)
    table = pa.concat_tables(gathered.tables)
    names = list(gathered.targets[0])
    return Encoding(
        {name: pool.submit(_narrow_numbers, table.column(name)) for name in plan.number_columns},
        {name: pool.submit(encode_column, table.column(name)) for name in plan.id_columns},
        {name: np.concatenate([targets[name] for targets in gathered.targets]) for name in names},
        gathered.bad,
        gathered.entry,
    )


def bytes_before(source: RawSource, file: str) -> int:
    """Bytes of the source's files before ``file``."""
    paths = [str(path) for path in source.paths]
    return sum(item.size_bytes for item in source.files[: paths.index(file)])


def _narrow_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float32 | np.float64]:
    return narrow(numbers(column))
