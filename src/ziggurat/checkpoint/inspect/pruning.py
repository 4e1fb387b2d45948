"""Deletes by hand what training would delete: old checkpoints, and what a writer that died left behind."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.catalogue import disk_bytes
from ziggurat.checkpoint.inspect.run_folders import open_folder, run_folder
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.object_store import ObjectStore
from ziggurat.checkpoint.store.store import LocalStore, Store
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import LOCK_FILE, locked_folder
from ziggurat.core.progress import Progress, Silent


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be.

    Attributes:
        steps: of checkpoints.
        kept: of the others.
        leftovers: unfinished folders, and files that no manifest knows.
        bytes: of all that was deleted.
    """

    steps: tuple[int, ...]
    kept: tuple[int, ...]
    leftovers: tuple[str, ...]
    bytes: int


def prune(path: Path, keep: int, *, dry_run: bool = False, progress: Progress | None = None) -> Pruned:
    """Keep the newest ``keep`` whole checkpoints of a run, the best, what these need, and newer ones that are not
    whole; delete the others and leftovers. Whole is what has all its files, by their sizes.

    Args:
        path: folder of the run, or of its checkpoints.
        keep: at least 1.
        dry_run: delete nothing.
        progress: where to show it.

    Raises:
        RunFolderError: no such run, one that is being trained, or a checkpoint that stays is damaged, so that it is not
            known which others it needs.
        DataError: the folder cannot be written.
    """
    assert keep >= 1, keep
    progress = progress or Silent()
    folder = open_folder(path)
    claim = _claimed(folder.store, path, dry_run, progress)
    with _locked([run_folder(path), _with_lock(folder)], dry_run), claim:
        spare = folder.removable(keep)
        leftovers = folder.leftovers()
        kept = tuple(step for step in folder.steps() if step not in spare)
        size = sum(disk_bytes(folder.store, folder_of(step)) for step in spare)
        size += sum(disk_bytes(folder.store, *each) for each in leftovers)
        names = tuple(f"{name}/{file}" if file else f"{name}/" for name, file in leftovers)
        if not dry_run:
            progress.start("delete", len(spare) + len(leftovers), "checkpoints and leftovers")
            for number, step in enumerate(reversed(spare), 1):  # what is needed goes behind what needs it
                folder.discard([step])
                progress.advance(number, step=step)
            folder.sweep()
            progress.advance(len(spare) + len(leftovers))
            progress.finish()
    return Pruned(tuple(spare), kept, names, size)


@contextlib.contextmanager
def _locked(places: Sequence[Path | None], dry_run: bool) -> Generator[None]:
    """Hold these folders as training does; a dry run leaves no lock where there was none."""
    with contextlib.ExitStack() as stack:
        for place in places:
            if place is not None and not (dry_run and not (place / LOCK_FILE).exists()):
                try:
                    stack.enter_context(locked_folder(place, "training"))
                except RunFolderError as error:
                    raise RunFolderError(error.problem, _HINT) from None
        yield


@contextlib.contextmanager
def _claimed(store: Store, path: Path, dry_run: bool, progress: Progress) -> Generator[None]:
    """Be the one who writes in an object store, which a training on another host may be."""
    if dry_run or not isinstance(store, ObjectStore):
        yield
        return
    place = path / "environment.json"
    try:
        owner = Owner(str(path), str(json.loads(place.read_text(encoding="utf-8"))["run_id"]))
    except (OSError, ValueError, KeyError) as error:
        raise RunFolderError(f"{place}: does not say which run this is: {error}", "restore it") from None
    with claimed(store, owner, note=progress.note):
        yield


def _with_lock(folder: CheckpointFolder) -> Path | None:
    """The folder of the checkpoints, where a training locks that."""
    root = folder.store.root if isinstance(folder.store, LocalStore) else None
    return root if root is not None and (root / LOCK_FILE).exists() else None


_HINT = "wait for it or stop it; training prunes by itself, to as many as training.keep says"
