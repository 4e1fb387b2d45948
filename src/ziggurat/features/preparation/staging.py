"""Pass 1 of preparation: raw blocks to staged parts, resumable after any interruption.

In one process, the reader parses the next block while the columns of the one before are encoded on a pool of threads.
Over a cluster, workers stage stretches of the files, and what they staged is recorded in the order of the rows. The
journal is the same, so that what began one way can go on the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ziggurat.core.progress import Progress
from ziggurat.data.readers.blocks import BadRow, FileRange, Position
from ziggurat.data.readers.quarantine import Quarantine
from ziggurat.features.bracket_check import check_brackets
from ziggurat.features.preparation.block_batching import Encoding, SplitSource, encode, gather
from ziggurat.features.preparation.cluster import Cluster, seen
from ziggurat.features.preparation.journal import JournalEntry, StagingJournal
from ziggurat.features.preparation.parts import StagedParts, part_path, write_part
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
    """Stage every good row of the sources in ``folder``, going on from the last part that is there.

    Returns:
        The parts, and the quarantine with its counts.

    Raises:
        DataError: a bad row under policy ``fail``; a file that cannot be read; a full disk.
    """
    journal = StagingJournal(folder, plan.fingerprint)
    if not journal.resumed:
        quarantine_path.unlink(missing_ok=True)
    total_bytes = sum(item.source.total_bytes for item in sources)
    progress.start("read", total_bytes, "bytes")
    if journal.resumed:
        progress.note(f"going on with an interrupted preparation after {sum(e.rows for e in journal.entries):,} rows")
    with Quarantine(quarantine_path, plan.data.on_bad_row) as quarantine:
        quarantine.truncate_to(journal.entries[-1].refused if journal.entries else 0)
        staging = _Staging(plan, sources, folder, journal, quarantine, progress)
        if cluster is None:
            with workers(plan.threads, "stage") as pool:
                _stage_here(staging, pool)
        else:
            _stage_there(staging, cluster)
    rows = sum(entry.rows for entry in journal.entries)
    progress.finish(f"{rows:,} rows")
    return StagedParts(folder, [entry.rows for entry in journal.entries]), quarantine


@dataclass(frozen=True, slots=True)
class _Staging:
    """What is staged, and where parts go."""

    plan: Preparation
    sources: Sequence[SplitSource]
    folder: Path
    journal: StagingJournal
    quarantine: Quarantine
    progress: Progress

    def unread(self) -> Iterator[tuple[int, Position]]:
        """The sources that are not finished, and where to go on in them."""
        last = self.journal.entries[-1] if self.journal.entries else JournalEntry(0, 0, Position(), 0, 0)
        if not last.finished:
            yield last.source, last.position
        for number in range(last.source + 1, len(self.sources)):
            yield number, Position()

    def commit(self, entry: JournalEntry, bad: Sequence[BadRow], put: Callable[[int], None]) -> None:
        """Have ``put`` put the part under its number, keep the refused rows, and record both; only that counts."""
        if entry.rows:
            put(len(self.journal.entries))
        self.quarantine.add(bad)
        self.journal.append(replace(entry, refused=self.quarantine.total))

    def report(self, entry: JournalEntry) -> None:
        """Show that reading has come as far as ``entry``."""
        before = sum(item.source.total_bytes for item in self.sources[: entry.source])
        rows = sum(each.rows for each in self.journal.entries)
        self.progress.advance(before + entry.done_bytes, rows=float(rows))


def _stage_here(staging: _Staging, pool: ThreadPoolExecutor) -> None:
    running: Encoding | None = None
    for number, start in staging.unread():
        for gathered in gather(staging.plan, staging.sources[number], number, start):
            following = encode(staging.plan, gathered, pool)
            if running is not None:
                _commit_encoded(staging, running)
            running = following
            staging.report(gathered.entry)
    if running is not None:
        _commit_encoded(staging, running)


def _commit_encoded(staging: _Staging, encoding: Encoding) -> None:
    staging.commit(encoding.entry, encoding.bad, lambda part: write_part(staging.folder, part, encoding.result()))


@dataclass(frozen=True, slots=True)
class _Work:
    """What every worker needs to stage any stretch."""

    plan: Preparation
    sources: Sequence[SplitSource]
    folder: Path


@dataclass(frozen=True, slots=True)
class _Task:
    """A stretch of source ``number``."""

    number: int
    file_range: FileRange


@dataclass(frozen=True, slots=True)
class _Staged:
    """A part that a worker wrote into the folder under a name of its own; none where it has no rows."""

    name: str
    bad: list[BadRow]
    entry: JournalEntry


def _stage_there(staging: _Staging, cluster: Cluster) -> None:
    work = _Work(staging.plan, staging.sources, staging.folder)
    for parts in cluster.run(_stage_stretch, work, _tasks(staging)):
        for part in parts:
            staging.commit(part.entry, part.bad, partial(_take, staging.folder, part.name))
        staging.report(parts[-1].entry)


def _take(folder: Path, name: str, number: int) -> None:
    (folder / name).replace(part_path(folder, number))


def _tasks(staging: _Staging) -> Iterator[_Task]:
    for number, start in staging.unread():
        source = staging.sources[number].source
        first = next(source.blocks(start), None)
        if first is not None:
            check_brackets(first.table, staging.plan.features)
        for file_range in source.file_ranges(start):
            yield _Task(number, file_range)


def _stage_stretch(work: _Work, task: _Task) -> list[_Staged]:
    """On a worker: stage the parts of one stretch. Tried again, it leaves other files, of which none is recorded."""
    item, file_range = work.sources[task.number], task.file_range
    seen(work.folder)
    seen(item.source.paths[file_range.start.file])
    parts: list[_Staged] = []
    with workers(1, "stage") as pool:
        for gathered in gather(work.plan, item, task.number, file_range.start, file_range.end):
            name = f"{uuid.uuid4().hex}.part"
            if gathered.entry.rows:
                write_part(work.folder, name, encode(work.plan, gathered, pool).result())
            parts.append(_Staged(name, gathered.bad, gathered.entry))
    return parts
