"""What the checkpoints of a run are, told from their manifests: a line each, or all of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ziggurat.checkpoint.folder import BEST_FILE, CheckpointFolder
from ziggurat.checkpoint.format.legacy import FORMAT_VERSION as FIRST_FORMAT
from ziggurat.checkpoint.format.manifest import FORMAT_VERSION
from ziggurat.checkpoint.inspect.catalogue import Catalogue, LegacyCheckpoint, disk_bytes, read_catalogue
from ziggurat.checkpoint.inspect.contents import FilePart, TablePart, files_in, tables_in
from ziggurat.checkpoint.inspect.verification import unfinished
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A checkpoint in a line. Of one that cannot be read only step, bytes and marks are known.

    Attributes:
        step: optimizer steps done.
        bytes: of its files.
        marks: ``best``, ``last``.
        problem: why it cannot be restored, as far as manifests tell.
        format: of its files.
        kind: ``full`` or ``delta``.
        needs: steps of the checkpoints that a restore reads before it.
        bits: asked for, of a number in a row.
        policy: that chose the kind; format 1 had none.
        ranks: that wrote it; format 1 does not say.
        rows: in its files.
        restore_bytes: of the files that a restore reads, those of ``needs`` included.
        made: when, ISO 8601 in UTC; format 1 does not say.
    """

    step: int
    bytes: int
    marks: tuple[str, ...]
    problem: str | None = None
    format: int | None = None
    kind: str | None = None
    needs: tuple[int, ...] = ()
    bits: int | None = None
    policy: str | None = None
    ranks: int | None = None
    rows: int | None = None
    restore_bytes: int | None = None
    made: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """The checkpoints of a run.

    Attributes:
        folder: where they lie.
        entries: ascending.
        bytes: of all files of checkpoints.
        best: ``{"step", "metric", "value"}``; None where none was evaluated.
        best_problem: why that cannot be told.
        unfinished: folders of steps without a manifest.
    """

    folder: str
    entries: tuple[CheckpointEntry, ...]
    bytes: int
    best: dict[str, Any] | None
    best_problem: str | None
    unfinished: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that is known of a checkpoint without reading its tensors.

    Attributes:
        where: its folder.
        entry: it in a line.
        chain: what a restore reads, the full checkpoint first, itself last; those that are not there are left out.
        tables: by name.
        files: as written.
        versions: of the libraries that wrote it.
        state: progression, schedule and what else training keeps.
        plan: where the tables' shards lay, as ``plan.json`` has it.
    """

    where: str
    entry: CheckpointEntry
    chain: tuple[CheckpointEntry, ...]
    tables: tuple[TablePart, ...]
    files: tuple[FilePart, ...]
    versions: dict[str, str]
    state: dict[str, Any]
    plan: dict[str, Any] | None


def listing(folder: CheckpointFolder, progress: Progress | None = None) -> Listing:
    """All checkpoints, those that cannot be read among them; none where there is no folder yet."""
    catalogue = read_catalogue(folder, progress=progress)
    best, problem = _best(folder)
    if best is not None and best["step"] not in catalogue.steps:
        problem = f"{folder.store.where('', BEST_FILE)}: names step {best['step']}, which is not there"
    marks = _marks(best, catalogue.steps[-1] if catalogue.steps else None)
    entries = tuple(_entry(catalogue, step, marks.get(step, ())) for step in catalogue.steps)
    return Listing(folder.where, entries, sum(each.bytes for each in entries), best, problem, unfinished(folder))


def inspect(folder: CheckpointFolder, which: str | int, progress: Progress | None = None) -> Inspection:
    """The checkpoint ``which``: ``best``, ``last`` or a step.

    Raises:
        RunFolderError: there is none, or its manifest cannot be read.
    """
    step = folder.find(which)
    catalogue = read_catalogue(folder, [step], progress)
    found = catalogue.found.get(step)
    if found is None:
        raise RunFolderError(catalogue.problems[step], "`ziggurat checkpoint list` shows the others")
    best, _ = _best(folder)  # damage of it is told by the list, and does not concern this checkpoint
    marks = _marks(best, folder.last())
    there = [each for each in (*catalogue.needs(step), step) if each in catalogue.found]
    chain = tuple(_entry(catalogue, each, marks.get(each, ())) for each in there)
    return Inspection(
        where=folder.store.where(folder_of(step)).rstrip("/"),
        entry=chain[-1],
        chain=chain,
        tables=tuple(tables_in(found)),
        files=tuple(files_in(found)),
        versions={} if isinstance(found, LegacyCheckpoint) else found.versions,
        state=found.state,
        plan=None if isinstance(found, LegacyCheckpoint) else found.plan,
    )


def _best(folder: CheckpointFolder) -> tuple[dict[str, Any] | None, str | None]:
    """What ``best.json`` says, or why it says nothing."""
    try:
        return folder.best(), None
    except RunFolderError as error:
        return None, error.problem


def _marks(best: dict[str, Any] | None, last: int | None) -> dict[int, tuple[str, ...]]:
    best_step = None if best is None else int(best["step"])
    if best_step is not None and best_step == last:
        return {best_step: ("best", "last")}
    return {step: (mark,) for step, mark in ((best_step, "best"), (last, "last")) if step is not None}


def _entry(catalogue: Catalogue, step: int, marks: tuple[str, ...]) -> CheckpointEntry:
    found = catalogue.found.get(step)
    if found is None:
        size = disk_bytes(catalogue.folder.store, folder_of(step))
        return CheckpointEntry(step, size, marks, catalogue.problems[step])
    rows = sum(part.rows for part in tables_in(found))
    if isinstance(found, LegacyCheckpoint):
        return CheckpointEntry(
            step, found.bytes, marks, format=FIRST_FORMAT, kind="full", bits=32, rows=rows, restore_bytes=found.bytes
        )
    problem = catalogue.chain_problem(step)
    return CheckpointEntry(
        step=step,
        bytes=found.bytes,
        marks=marks,
        problem=problem,
        format=FORMAT_VERSION,
        kind=found.kind,
        needs=tuple(catalogue.needs(step)),
        bits=found.bits,
        policy=found.policy,
        ranks=found.world_size,
        rows=rows,
        restore_bytes=None if problem else catalogue.restore_bytes(step),
        made=found.made,
    )
