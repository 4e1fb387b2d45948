"""Pass 1 of preparation: raw blocks to staged parts, resumable after any interruption.

The reader parses the next block while the columns of the one before are encoded on a pool of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.progress import Progress
from ziggurat.data.blocks import BadRow, Position
from ziggurat.data.quarantine import Quarantine
from ziggurat.data.source import Source
from ziggurat.data.split import TRAIN
from ziggurat.features.bracket_check import check_brackets
from ziggurat.features.checks import check_rows
from ziggurat.features.columns import Codes, encode_column, numbers
from ziggurat.features.journal import Entry, Journal
from ziggurat.features.parts import Part, Parts, narrow, write_part
from ziggurat.features.preparation import Preparation
from ziggurat.features.splitting import split_columns
from ziggurat.features.workers import workers

PART_ROWS = 131_072
PART_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SplitSource:
    """A source and the split that its rows belong to, where the files decide."""

    source: Source
    split: int = TRAIN


@dataclass(slots=True)
class _Pending:
    """Good rows of consecutive blocks that will be one part."""

    entry: Entry
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
class _Encoding:
    """A part whose columns are being encoded by the pool."""

    numbers: dict[str, Future[npt.NDArray[np.float32 | np.float64]]]
    ids: dict[str, Future[tuple[pa.Array, Codes]]]
    targets: dict[str, npt.NDArray[Any]]
    bad: list[BadRow]
    entry: Entry

    def result(self) -> Part:
        return Part(
            {name: future.result() for name, future in self.numbers.items()},
            {name: future.result() for name, future in self.ids.items()},
            self.targets,
        )


def stage(
    plan: Preparation, sources: Sequence[SplitSource], folder: Path, quarantine_path: Path, progress: Progress
) -> tuple[Parts, Quarantine]:
    """Stage every good row of the sources in ``folder``, going on from the last part that is there.

    Returns:
        The parts, and the quarantine with its counts.

    Raises:
        DataError: a bad row under policy ``fail``; a file that cannot be read; a full disk.
    """
    journal = Journal(folder, plan.fingerprint)
    if not journal.resumed:
        quarantine_path.unlink(missing_ok=True)
    total_bytes = sum(item.source.total_bytes for item in sources)
    progress.start("read", total_bytes, "bytes")
    if journal.resumed:
        progress.note(f"going on with an interrupted preparation after {sum(e.rows for e in journal.entries):,} rows")
    with Quarantine(quarantine_path, plan.data.on_bad_row) as quarantine:
        quarantine.truncate_to(journal.entries[-1].refused if journal.entries else 0)
        with workers(plan.threads, "stage") as pool:
            _stage(plan, sources, _Staging(folder, journal, quarantine), pool, progress)
    rows = sum(entry.rows for entry in journal.entries)
    progress.finish(f"{rows:,} rows")
    return Parts(folder, [entry.rows for entry in journal.entries]), quarantine


@dataclass(frozen=True, slots=True)
class _Staging:
    """Where parts go."""

    folder: Path
    journal: Journal
    quarantine: Quarantine

    def commit(self, encoding: _Encoding) -> None:
        """Write the part, keep its refused rows, and record both; only the record makes them count."""
        entry = encoding.entry
        if entry.rows:
            write_part(self.folder, len(self.journal.entries), encoding.result())
        self.quarantine.add(encoding.bad)
        self.journal.append(replace(entry, refused=self.quarantine.total))


def _stage(
    plan: Preparation,
    sources: Sequence[SplitSource],
    staging: _Staging,
    pool: ThreadPoolExecutor,
    progress: Progress,
) -> None:
    sizes = [sum(item.source.total_bytes for item in sources[:number]) for number in range(len(sources))]
    running: _Encoding | None = None
    for pending in _pending_parts(plan, sources, staging.journal.entries):
        following = _encode(plan, pending, pool)
        if running is not None:
            staging.commit(running)
        running = following
        rows = sum(entry.rows for entry in staging.journal.entries)
        progress.advance(sizes[pending.entry.source] + pending.entry.done_bytes, rows=float(rows))
    if running is not None:
        staging.commit(running)


def _pending_parts(plan: Preparation, sources: Sequence[SplitSource], entries: Sequence[Entry]) -> Iterator[_Pending]:
    """The parts of the sources that are not finished, from where the journal ends; a source's last says so."""
    last = entries[-1] if entries else Entry(0, 0, Position(), 0, 0)
    for number in range(last.source, len(sources)):
        entry = last if number == last.source else Entry(0, number, Position(), 0, 0)
        if entry.finished:
            continue
        source = sources[number].source
        pending = _Pending(entry)
        for number_of_block, block in enumerate(source.blocks(entry.position)):
            if number_of_block == 0:
                check_brackets(block.table, plan.features)
            checked = check_rows(block, plan.targets, plan.tables)
            splits = split_columns(plan.data.split, sources[number].split, block, checked)
            pending.tables.append(checked.table)
            pending.targets.append({**checked.targets, **splits})
            pending.bad.extend(checked.bad)
            done_bytes = bytes_before(source, block.file) + block.source_bytes
            pending.entry = Entry(pending.rows, number, block.end, done_bytes, 0)
            if pending.full:
                yield pending
                pending = _Pending(pending.entry)
        pending.entry = Entry(pending.rows, number, pending.entry.position, source.total_bytes, 0, finished=True)
        yield pending


def bytes_before(source: Source, file: str) -> int:
    """Bytes of the source's files before ``file``."""
    paths = [str(path) for path in source.paths]
    return sum(item.size_bytes for item in source.files[: paths.index(file)])


def _encode(plan: Preparation, pending: _Pending, pool: ThreadPoolExecutor) -> _Encoding:
    """Begin to encode the columns of a part."""
    if not pending.tables:
        return _Encoding({}, {}, {}, pending.bad, pending.entry)
    table = pa.concat_tables(pending.tables)
    names = list(pending.targets[0])
    return _Encoding(
        {name: pool.submit(_narrow_numbers, table.column(name)) for name in plan.number_columns},
        {name: pool.submit(encode_column, table.column(name)) for name in plan.id_columns},
        {name: np.concatenate([targets[name] for targets in pending.targets]) for name in names},
        pending.bad,
        pending.entry,
    )


def _narrow_numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float32 | np.float64]:
    return narrow(numbers(column))
