"""Describes the checkpoints of a run from their manifests: an entry for each, or the details of one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.checkpoint.folder import BEST_FILE, CheckpointFolder
from ziggurat.checkpoint.format.legacy import FORMAT_VERSION as FIRST_FORMAT
from ziggurat.checkpoint.format.manifest import FORMAT_VERSION
from ziggurat.checkpoint.inspect.catalogue import Catalogue, LegacyCheckpoint, disk_bytes, read_catalogue
from ziggurat.checkpoint.inspect.contents import FileContents, TableContents, files_in, tables_in
from ziggurat.checkpoint.inspect.run_folders import open_folder
from ziggurat.checkpoint.inspect.verification import unfinished
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """A summary of one checkpoint. If its manifest cannot be read, only step, bytes, marks and problem are set.

    Attributes:
        step: optimizer steps done.
        bytes: size of its files.
        marks: ``best``, ``last``, both or neither.
        problem: why it cannot be restored, as far as manifests show.
        format: format version of its files.
        kind: ``full`` or ``delta``.
        needs: steps of the checkpoints that a restore reads before it.
        bits: bits per value requested for rows.
        policy: the policy that chose the kind; None for format 1, which had none.
        ranks: number of ranks that wrote it; None for format 1, which does not record it.
        rows: number of rows in its files.
        restore_bytes: size of the files that a restore reads, those of ``needs`` included.
        made: when it was written, ISO 8601 in UTC; None for format 1, which does not record it.
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
        folder: path or URL of their folder.
        entries: one per checkpoint, by ascending step.
        bytes: size of all checkpoints.
        best: ``{"step", "metric", "value"}``; None if none was evaluated.
        best_problem: why the best checkpoint is unknown or missing.
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
    """All that is known about a checkpoint without reading its tensors.

    Attributes:
        where: path or URL of its folder.
        entry: its summary.
        chain: the checkpoints that a restore reads, the full one first, this one last; missing ones are left out.
        tables: its content by table.
        files: its files in the order of writing.
        versions: versions of the libraries that wrote it.
        state: progression, schedule and other state of the training.
        plan: the placement of the tables' shards, as in ``plan.json``.
    """

    where: str
    entry: CheckpointEntry
    chain: tuple[CheckpointEntry, ...]
    tables: tuple[TableContents, ...]
    files: tuple[FileContents, ...]
    versions: dict[str, str]
    state: dict[str, Any]
    plan: dict[str, Any] | None


def listing(folder: CheckpointFolder | str | Path, progress: Progress | None = None) -> Listing:
    """Lists all checkpoints, also those that cannot be read. The list is empty if there is no folder yet.

    Args:
        folder: the checkpoints, or what :func:`ziggurat.open_checkpoints` takes.
        progress: where to show progress.

    Raises:
        RunFolderError: there is no such run.
    """
    folder = open_folder(folder)
    catalogue = read_catalogue(folder, progress=progress)
    best, problem = _best(folder)
    if best is not None and best["step"] not in catalogue.steps:
        problem = f"{folder.store.where('', BEST_FILE)}: names step {best['step']}, which does not exist"
    marks = _marks(best, catalogue.steps[-1] if catalogue.steps else None)
    entries = tuple(_entry(catalogue, step, marks.get(step, ())) for step in catalogue.steps)
    return Listing(folder.where, entries, sum(each.bytes for each in entries), best, problem, unfinished(folder))


def inspect(folder: CheckpointFolder | str | Path, which: str | int, progress: Progress | None = None) -> Inspection:
    """Returns the details of a checkpoint.

    Args:
        folder: the checkpoints, or what :func:`ziggurat.open_checkpoints` takes.
        which: ``best``, ``last`` or a step.
        progress: where to show progress.

    Raises:
        RunFolderError: there is no such checkpoint, or its manifest cannot be read.
    """
    folder = open_folder(folder)
    step = folder.find(which)
    catalogue = read_catalogue(folder, [step], progress)
    found = catalogue.found.get(step)
    if found is None:
        raise RunFolderError(catalogue.problems[step], "`ziggurat checkpoint list` shows the others")
    best, _ = _best(folder)  # `listing` reports a damaged best.json; it does not concern this checkpoint
    marks = _marks(best, folder.last())
    readable = [each for each in (*catalogue.needs(step), step) if each in catalogue.found]
    chain = tuple(_entry(catalogue, each, marks.get(each, ())) for each in readable)
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
    """Returns the best checkpoint and None, or None and the problem of ``best.json``."""
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
