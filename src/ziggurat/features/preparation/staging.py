"""Pass 1 of preparation: stages raw blocks as parts, and can resume after any interruption.

In one process, the reader parses the next block while a pool of threads encodes the columns of the previous one. On a
cluster, workers stage file ranges, and the parts are recorded in the order of the rows. Both use the same journal, so
that a preparation may be started in one way and resumed in the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ziggurat.core.digests import digest
from ziggurat.core.progress import Progress
from ziggurat.data.readers.blocks import BadRow, FileRange, Position
from ziggurat.data.readers.quarantine import Quarantine, quarantine_lines
from ziggurat.features.bracket_check import check_brackets
from ziggurat.features.preparation.block_batching import Encoding, SplitSource, encode, read_parts
from ziggurat.features.preparation.cluster import Cluster, check_visible
from ziggurat.features.preparation.journal import JournalEntry, StagingJournal
from ziggurat.features.preparation.parts import StagedParts, part_path, write_part
from ziggurat.features.preparation.resuming import drop_damaged
from ziggurat.features.preparation.workers import workers
from ziggurat.features.preparation_plan import Preparation


def stage(
    plan: Preparation,
    sources: Sequence[SplitSource],
    folder: Path,
    quarantine_path: Path,
    progress: Progress,
    cluster: Cluster | None = None,
) -> tuple[StagedParts, Quarantine]:
    """Stages every good row of the sources in ``folder``; resumes after the last recorded part.

    Returns:
        The parts, and the quarantine with its counts.

    Raises:
        DataError: a row is bad under policy ``fail``, a file cannot be read, or the disk is full.
    """
    journal = StagingJournal(folder, plan.fingerprint)
    total_bytes = sum(item.source.total_bytes for item in sources)
    progress.start("read", total_bytes, "bytes")
    problem = drop_damaged(journal, folder, len(sources), quarantine_path)
    if problem is not None:
        progress.note(f"{problem}; the rows from there on are read again")
    if journal.resumed:
        progress.note(f"resuming an interrupted preparation after {sum(e.rows for e in journal.entries):,} rows")
    with Quarantine(quarantine_path, plan.data.on_bad_row) as quarantine:
        quarantine.truncate_to(journal.entries[-1].refused if journal.entries else 0)
        staging = _Staging(plan, sources, folder, journal, quarantine, progress)
        if cluster is None:
            with workers(plan.threads, "stage") as pool:
                _stage_locally(staging, pool)
        else:
            _stage_on_cluster(staging, cluster)
    rows = sum(entry.rows for entry in journal.entries)
    progress.finish(f"{rows:,} rows")
    return StagedParts(folder, [(entry.rows, entry.checksum) for entry in journal.entries]), quarantine


@dataclass(frozen=True, slots=True)
class _Staging:
    """The state of pass 1."""

    plan: Preparation
    sources: Sequence[SplitSource]
    folder: Path
    journal: StagingJournal
    quarantine: Quarantine
    progress: Progress

    def unread(self) -> Iterator[tuple[int, Position]]:
        """Yields the sources that are not finished, and where to resume reading them."""
        last = self.journal.entries[-1] if self.journal.entries else JournalEntry(0, 0, Position(), 0, 0)
        if not last.finished:
            yield last.source, last.position
        for number in range(last.source + 1, len(self.sources)):
            yield number, Position()

    def commit(self, entry: JournalEntry, bad: Sequence[BadRow], save_part: Callable[[int], str]) -> None:
        """Saves a part and its rejected rows, then records them in the journal, which makes them valid.

        Args:
            entry: the part's journal entry.
            bad: rejected rows.
            save_part: saves the part under the given number, and returns its checksum.
        """
        checksum = save_part(len(self.journal.entries)) if entry.rows else ""
        self.quarantine.add(bad)
        refused_checksum = digest(quarantine_lines(bad)) if bad else ""
        refused = self.quarantine.total
        self.journal.append(replace(entry, refused=refused, checksum=checksum, refused_checksum=refused_checksum))

    def report(self, entry: JournalEntry) -> None:
        """Reports that reading has reached the end of the entry's part."""
        before = sum(item.source.total_bytes for item in self.sources[: entry.source])
        rows = sum(each.rows for each in self.journal.entries)
        self.progress.advance(before + entry.done_bytes, rows=float(rows))


def _stage_locally(staging: _Staging, pool: ThreadPoolExecutor) -> None:
    running: Encoding | None = None
    for number, start in staging.unread():
        for checked in read_parts(staging.plan, staging.sources[number], number, start):
            encoding = encode(staging.plan, checked, pool)
            if running is not None:
                _commit_encoded(staging, running)
            running = encoding
            staging.report(checked.entry)
    if running is not None:
        _commit_encoded(staging, running)


def _commit_encoded(staging: _Staging, encoding: Encoding) -> None:
    """Waits for a part's columns and commits it."""
    staging.commit(encoding.entry, encoding.bad, lambda part: write_part(staging.folder, part, encoding.result()))


@dataclass(frozen=True, slots=True)
class _Work:
    """The data that workers share."""

    plan: Preparation
    sources: Sequence[SplitSource]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Task:
    """A file range of source ``number``."""

    number: int
    file_range: FileRange


@dataclass(frozen=True, slots=True)
class _Staged:
    """A part that a worker wrote under a temporary name, with its checksum; there is no file if it has no rows."""

    name: str
    bad: list[BadRow]
    entry: JournalEntry
    checksum: str


def _stage_on_cluster(staging: _Staging, cluster: Cluster) -> None:
    work = _Work(staging.plan, staging.sources, staging.folder)
    for parts in cluster.run(_stage_file_range, work, _tasks(staging)):
        for part in parts:
            staging.commit(part.entry, part.bad, partial(_rename_part, staging.folder, part))
        staging.report(parts[-1].entry)


def _rename_part(folder: Path, part: _Staged, number: int) -> str:
    (folder / part.name).replace(part_path(folder, number))
    return part.checksum


def _tasks(staging: _Staging) -> Iterator[_Task]:
    for number, start in staging.unread():
        source = staging.sources[number].source
        first = next(source.blocks(start), None)
        if first is not None:
            check_brackets(first.table, staging.plan.features)
        for file_range in source.file_ranges(start):
            yield _Task(number, file_range)


def _stage_file_range(work: _Work, task: _Task) -> list[_Staged]:
    """Runs on a worker: stages the parts of one file range. Files of an earlier, failed try are never recorded."""
    item, file_range = work.sources[task.number], task.file_range
    check_visible(work.folder)
    file = item.source.files[file_range.start.file]
    if file.remote is None:
        check_visible(file.on_disk)
    parts: list[_Staged] = []
    with workers(1, "stage") as pool:
        for checked in read_parts(work.plan, item, task.number, file_range.start, file_range.end):
            name = f"{uuid.uuid4().hex}.part"
            checksum = ""
            if checked.entry.rows:
                checksum = write_part(work.folder, name, encode(work.plan, checked, pool).result())
            parts.append(_Staged(name, checked.bad, checked.entry, checksum))
    return parts
