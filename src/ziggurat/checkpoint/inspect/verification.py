"""Verifies checkpoints against their checksums. Each file is read once, even if several checkpoints need it.

Training may write and prune meanwhile: a checkpoint that is deleted while it is verified is not an error, and one that
is overwritten is read again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ziggurat.checkpoint.folder import BEST_FILE, CheckpointFolder
from ziggurat.checkpoint.format.legacy import STATE_FILE
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest
from ziggurat.checkpoint.inspect.catalogue import Catalogue, LegacyCheckpoint, disk_bytes, read_catalogue
from ziggurat.checkpoint.inspect.run_folders import open_folder
from ziggurat.checkpoint.reader import FOLDER, folder_of
from ziggurat.checkpoint.store.store import LocalStore, Unreachable
from ziggurat.checkpoint.verified_files import read_file
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import LOCK_FILE
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.untrusted import Damage, opened

_FOLDER_FILE = re.compile(rf"{re.escape(BEST_FILE)}|{LOCK_FILE}|writer(-[0-9]+)?\.json")
"""Names of the other files in the checkpoints' folder: ``best.json``, and the lock and identity of the writer."""
State = Literal["whole", "broken", "unusable", "deleted", "newer"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one checkpoint.

    Attributes:
        step: its step.
        state: ``whole``: intact; ``broken``: a file of its own is missing or changed; ``unusable``: it needs a
            checkpoint that is broken or missing; ``deleted``: since verification began; ``newer``: of a format that
            this version cannot read.
        problems: what is wrong; each names its file.
        files: number of its own files.
        bytes: size of these.
    """

    step: int
    state: State
    problems: tuple[str, ...]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for several checkpoints.

    Attributes:
        verdicts: results of the checkpoints requested and of those that they need, by ascending step.
        best_problem: what is wrong with ``best.json``.
        unfinished: folders of steps without a manifest: being written, or left by a writer that died.
        foreign: files and folders that no manifest lists, as paths relative to the checkpoints' folder.
    """

    verdicts: tuple[Verdict, ...]
    best_problem: str | None
    unfinished: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether no checkpoint is broken, unusable or of a newer format, and ``best.json`` is intact."""
        return self.best_problem is None and all(each.state in {"whole", "deleted"} for each in self.verdicts)


def verify(
    folder: CheckpointFolder | str | Path,
    which: str | int | Iterable[str | int] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verifies all files of the checkpoints ``which`` and of those that they need.

    Args:
        folder: the checkpoints, or what :func:`ziggurat.open_checkpoints` takes.
        which: ``best``, ``last`` or a step, or several of them; default: all checkpoints.
        progress: where to show progress.

    Raises:
        RunFolderError: there is no checkpoint at all, or one of ``which`` does not exist.
        Unreachable: the store gives no answer.
    """
    progress = progress or Silent()
    folder = open_folder(folder)
    folder.resolve("last")
    named = [which] if isinstance(which, str | int) else which
    catalogue = read_catalogue(folder, None if named is None else [folder.find(each) for each in named], progress)
    verifier = _FileVerifier(catalogue, progress)
    problems = {step: verifier.problems(step) for step in catalogue.steps}
    progress.finish()
    best_problem = _best_problem(folder)
    existing = set(folder.steps())
    verdicts = tuple(_verdict(catalogue, step, problems, existing) for step in catalogue.steps)
    return Verification(verdicts, best_problem, unfinished(folder), _foreign(folder, catalogue))


def unfinished(folder: CheckpointFolder) -> tuple[str, ...]:
    """Returns the names of step folders without a manifest and without files of other programs."""
    return tuple(name for name in _without_manifest(folder) if not folder.foreign_files(name))


def _without_manifest(folder: CheckpointFolder) -> list[str]:
    steps = {folder_of(step) for step in folder.steps()}
    return [name for name in sorted(folder.store.folders()) if FOLDER.fullmatch(name) and name not in steps]


class _FileVerifier:
    """Verifies the files of checkpoints and shows progress."""

    def __init__(self, catalogue: Catalogue, progress: Progress) -> None:
        self._catalogue, self._progress, self._done = catalogue, progress, 0
        progress.start("verify", sum(found.bytes for found in catalogue.found.values()), "bytes")

    def problems(self, step: int) -> tuple[str, ...]:
        """Returns what is wrong with a checkpoint's own files, one message per file."""
        while True:
            found = self._catalogue.found.get(step)
            if found is None:
                return (self._catalogue.problems[step],)
            if isinstance(found, LegacyCheckpoint):
                problems = tuple(self._legacy_problems(found))
            elif (foreign := self._catalogue.folder.foreign_problem(found)) is not None:
                problems = (f"{self._catalogue.folder.store.where(folder_of(step), MANIFEST_FILE)}: {foreign}",)
            else:
                problems = tuple(self._file_problems(found))
            if not problems:
                return ()
            self._catalogue.read(step)  # training may have overwritten or deleted it
            if self._catalogue.found.get(step) == found:
                return problems

    def _file_problems(self, manifest: Manifest) -> Iterable[str]:
        store = self._catalogue.folder.store
        for file in manifest.files:
            try:
                read_file(store, manifest, file)
            except Unreachable:
                raise
            except RunFolderError as error:
                yield error.problem
            self._advance(file.bytes, manifest.step)

    def _legacy_problems(self, found: LegacyCheckpoint) -> Iterable[str]:
        store = self._catalogue.folder.store
        assert isinstance(store, LocalStore)
        for name, digest in found.digests.items():
            path = store.root / folder_of(found.step) / name
            try:
                if hash_file(path, lambda more: self._advance(more, found.step)) != digest:
                    yield f"{path}: its SHA-256 differs from the one recorded when it was saved"
            except RunFolderError as error:
                yield error.problem

    def _advance(self, more: int, step: int) -> None:
        self._done += more
        self._progress.advance(self._done, step=step)


def _verdict(catalogue: Catalogue, step: int, problems: dict[int, tuple[str, ...]], existing: set[int]) -> Verdict:
    """Returns the result for one checkpoint.

    Args:
        catalogue: the manifests.
        step: step of the checkpoint.
        problems: step -> what is wrong with the checkpoint's own files.
        existing: steps of the checkpoints that exist after verification.
    """
    found = catalogue.found.get(step)
    files = 0 if found is None else len(found.files if isinstance(found, Manifest) else found.digests)
    size = disk_bytes(catalogue.folder.store, folder_of(step)) if found is None else found.bytes
    if step not in existing:
        return Verdict(step, "deleted", (), files, size)
    if step in catalogue.newer:
        return Verdict(step, "newer", problems[step], files, size)
    if problems[step]:
        return Verdict(step, "broken", problems[step], files, size)
    problem = catalogue.chain_problem(step)
    for need in catalogue.needs(step):
        if problem is None and need not in existing:
            problem = f"needs the checkpoint of step {need}, which does not exist"
        elif problem is None and problems[need]:
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
            if folder.best() == best:  # otherwise training has found a better one and deleted the other meanwhile
                return f"{folder.store.where('', BEST_FILE)}: names step {best['step']}, which does not exist"
        except RunFolderError as error:
            return error.problem


def _foreign(folder: CheckpointFolder, catalogue: Catalogue) -> tuple[str, ...]:
    """Returns the files and folders that belong neither to a checkpoint nor to the folder of checkpoints."""
    store = folder.store
    names = [name for name in sorted(store.files()) if _FOLDER_FILE.fullmatch(name) is None]
    names += [f"{name}/" for name in sorted(store.folders()) if FOLDER.fullmatch(name) is None]
    names += [f"{name}/{file}" for name in _without_manifest(folder) for file in folder.foreign_files(name)]
    for step, found in sorted(catalogue.found.items()):
        known = {STATE_FILE, *found.digests} if isinstance(found, LegacyCheckpoint) else _listed_files(found)
        names += [f"{folder_of(step)}/{name}" for name in sorted(store.files(folder_of(step))) if name not in known]
    return tuple(names)


def _listed_files(manifest: Manifest) -> set[str]:
    return {MANIFEST_FILE, *(file.name for file in manifest.files)}


def hash_file(path: Path, on_progress: Callable[[int], None]) -> str:
    """Returns the SHA-256 of a file of any size, in hexadecimal.

    Args:
        path: path of the file.
        on_progress: receives the number of bytes read since its last call.

    Raises:
        RunFolderError: it is missing, no regular file, or cannot be read.
    """
    damage, digest = Damage(RunFolderError, "restore the file"), hashlib.sha256()
    try:
        with opened(path, damage) as file:
            while chunk := file.read(2**23):
                digest.update(chunk)
                on_progress(len(chunk))
    except OSError as error:
        raise damage.of(path, f"cannot be read: {error.strerror}") from None
    return digest.hexdigest()
