"""Whether checkpoints are still what was written: every file is read once, those that several checkpoints need too.

Training may write and prune meanwhile: a checkpoint that is deleted while it is verified is no error, and one that is
written again is read again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ziggurat.checkpoint.folder import BEST_FILE, CheckpointFolder
from ziggurat.checkpoint.format.blocks import check_file
from ziggurat.checkpoint.format.legacy import STATE_FILE
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest
from ziggurat.checkpoint.inspect.catalogue import Catalogue, LegacyCheckpoint, disk_bytes, read_catalogue
from ziggurat.checkpoint.reader import FOLDER, folder_of
from ziggurat.checkpoint.store.store import LocalStore, Unreachable
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import LOCK_FILE
from ziggurat.core.progress import Progress, Silent

_OURS = re.compile(rf"{re.escape(BEST_FILE)}|{LOCK_FILE}|writer(-\d+)?\.json")
"""Files beside the checkpoints: which is the best, and who writes them."""
State = Literal["whole", "broken", "unusable", "deleted", "newer"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of a checkpoint.

    Attributes:
        step: its.
        state: ``whole``; ``broken``: a file of its own is missing or changed; ``unusable``: it needs one that is broken
            or not there; ``deleted``: since verification began; ``newer``: of a format that this version cannot read.
        problems: what is wrong, naming each file.
        files: of its own.
        bytes: of these.
    """

    step: int
    state: State
    problems: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of several checkpoints.

    Attributes:
        verdicts: by step, ascending, of those asked for and of what they need.
        best_problem: what is wrong with ``best.json``.
        unfinished: folders of steps that have no manifest: being written, or left by a writer that died.
        foreign: files and folders that no manifest knows, from the checkpoints' folder on.
    """

    verdicts: tuple[Verdict, ...]
    best_problem: str | None
    unfinished: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is broken."""
        return self.best_problem is None and all(each.state in {"whole", "deleted"} for each in self.verdicts)


def verify(
    folder: CheckpointFolder, which: Iterable[str | int] | None = None, progress: Progress | None = None
) -> Verification:
    """Read all files of the checkpoints ``which``, and of those that they need; default: of all.

    Raises:
        RunFolderError: there is no checkpoint, or none of ``which``.
        Unreachable: the store gives no answer.
    """
    progress = progress or Silent()
    folder.resolve("last")
    catalogue = read_catalogue(folder, None if which is None else [folder.find(each) for each in which], progress)
    reading = _Reading(catalogue, progress)
    wrong = {step: reading.problems(step) for step in catalogue.steps}
    progress.finish()
    best_problem = _best_problem(folder)
    there = set(folder.steps())
    verdicts = tuple(_verdict(catalogue, step, wrong, there) for step in catalogue.steps)
    return Verification(verdicts, best_problem, unfinished(folder), _foreign(folder, catalogue))


def unfinished(folder: CheckpointFolder) -> tuple[str, ...]:
    """Names of the folders of steps that have no manifest, and no file of another program."""
    return tuple(name for name in _without_manifest(folder) if not folder.foreign_files(name))


def _without_manifest(folder: CheckpointFolder) -> list[str]:
    steps = {folder_of(step) for step in folder.steps()}
    return [name for name in sorted(folder.store.folders()) if FOLDER.fullmatch(name) and name not in steps]


class _Reading:
    """Reads files and tells how far it is."""

    def __init__(self, catalogue: Catalogue, progress: Progress) -> None:
        self._catalogue, self._progress, self._done = catalogue, progress, 0
        progress.start("verify", sum(found.bytes for found in catalogue.found.values()), "bytes")

    def problems(self, step: int) -> tuple[str, ...]:
        """What is wrong with the files of a checkpoint itself, one by one."""
        while True:
            found = self._catalogue.found.get(step)
            if found is None:
                return (self._catalogue.problems[step],)
            problems = tuple(self._version_1(found) if isinstance(found, LegacyCheckpoint) else self._files(found))
            if not problems:
                return ()
            self._catalogue.read(step)  # training may have written it again, or deleted it
            if self._catalogue.found.get(step) == found:
                return problems

    def _files(self, manifest: Manifest) -> Iterable[str]:
        store, folder = self._catalogue.folder.store, folder_of(manifest.step)
        for file in manifest.files:
            try:
                check_file(file, store.read(folder, file.name), store.where(folder, file.name))
            except Unreachable:
                raise
            except RunFolderError as error:
                yield error.problem
            self._heard(file.bytes, manifest.step)

    def _version_1(self, found: LegacyCheckpoint) -> Iterable[str]:
        store = self._catalogue.folder.store
        assert isinstance(store, LocalStore)
        for name, digest in found.digests.items():
            path = store.root / folder_of(found.step) / name
            try:
                if hash_file(path, lambda more: self._heard(more, found.step)) != digest:
                    yield f"{path}: its SHA-256 differs from the one recorded when it was saved"
            except OSError as error:
                yield f"{path}: cannot be read: {error.strerror}"

    def _heard(self, more: int, step: int) -> None:
        self._done += more
        self._progress.advance(self._done, step=step)


def _verdict(catalogue: Catalogue, step: int, wrong: dict[int, tuple[str, ...]], there: set[int]) -> Verdict:
    found = catalogue.found.get(step)
    files = 0 if found is None else len(found.files if isinstance(found, Manifest) else found.digests)
    size = disk_bytes(catalogue.folder.store, folder_of(step)) if found is None else found.bytes
    if step not in there:
        return Verdict(step, "deleted", (), files, size)
    if step in catalogue.newer:
        return Verdict(step, "newer", wrong[step], files, size)
    if wrong[step]:
        return Verdict(step, "broken", wrong[step], files, size)
    problem = catalogue.chain_problem(step)
    for need in catalogue.needs(step):
        if problem is None and need not in there:
            problem = f"needs the checkpoint of step {need}, which is not there"
        elif problem is None and wrong[need]:
            problem = f"needs the checkpoint of step {need}, which is broken"
    return Verdict(step, "unusable" if problem else "whole", (problem,) if problem else (), files, size)


def _best_problem(folder: CheckpointFolder) -> str | None:
    while True:
        try:
            best = folder.best()
        except RunFolderError as error:
            return error.problem
        if best is None or best["step"] in folder.steps():
            return None
        try:
            if folder.best() == best:  # else training has found a better one and deleted the other meanwhile
                return f"{folder.store.where('', BEST_FILE)}: names step {best['step']}, which is not there"
        except RunFolderError as error:
            return error.problem


def _foreign(folder: CheckpointFolder, catalogue: Catalogue) -> tuple[str, ...]:
    """What is neither a checkpoint's file nor a checkpoint, nor told of them all."""
    store = folder.store
    names = [name for name in sorted(store.files()) if _OURS.fullmatch(name) is None]
    names += [f"{name}/" for name in sorted(store.folders()) if FOLDER.fullmatch(name) is None]
    names += [f"{name}/{file}" for name in _without_manifest(folder) for file in folder.foreign_files(name)]
    for step, found in sorted(catalogue.found.items()):
        known = {STATE_FILE, *found.digests} if isinstance(found, LegacyCheckpoint) else _known(found)
        names += [f"{folder_of(step)}/{name}" for name in sorted(store.files(folder_of(step))) if name not in known]
    return tuple(names)


def _known(manifest: Manifest) -> set[str]:
    return {MANIFEST_FILE, *(file.name for file in manifest.files)}


def hash_file(path: Path, heard: Callable[[int], None]) -> str:
    """SHA-256 of a file of any size, in hexadecimal; ``heard`` is told how many bytes more were read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(2**23):
            digest.update(chunk)
            heard(len(chunk))
    return digest.hexdigest()
