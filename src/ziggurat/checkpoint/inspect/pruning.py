"""Deletes on request what training deletes by itself: old checkpoints, and what a writer that died left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.folder import ENVIRONMENT, CheckpointFolder
from ziggurat.checkpoint.inspect.catalogue import disk_bytes
from ziggurat.checkpoint.inspect.run_folders import open_folder, recorded_run_id, run_folder
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.object_store import ObjectStore
from ziggurat.checkpoint.store.store import LocalStore, Store
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import LOCK_FILE, locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.untrusted import Damage


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or would be deleted in a dry run.

    Attributes:
        steps: steps of the checkpoints deleted.
        kept: steps of the checkpoints kept.
        leftovers: unfinished folders, and files that no manifest lists.
        bytes: size of everything deleted.
    """

    steps: tuple[int, ...]
    kept: tuple[int, ...]
    leftovers: tuple[str, ...]
    bytes: int


def prune(path: str | Path, keep: int, *, dry_run: bool = False, progress: Progress | None = None) -> Pruned:
    """Deletes old checkpoints of a run, and what a writer that died left behind.

    It keeps the newest ``keep`` complete checkpoints, the best one, snapshots, the checkpoints that these need, and
    incomplete ones that are newer. A checkpoint is complete if all its files exist with their recorded sizes.

    Args:
        path: the run folder, or the folder of its checkpoints.
        keep: at least 1.
        dry_run: whether to delete nothing.
        progress: where to show progress.

    Raises:
        RunFolderError: there is no such run, it is being trained, the checkpoints belong to another run, a link
            leads out of their folder, or the manifest of a checkpoint to keep is damaged.
        DataError: the folder cannot be written.
    """
    assert keep >= 1, keep
    progress = progress or Silent()
    if "://" in str(path):
        raise RunFolderError(
            f"{path}: is a store, but only a run's folder says which checkpoints belong to it",
            "give the run's folder, whose config names the store",
        )
    path = Path(path)
    folder = open_folder(path)
    owner = _owner(folder.store, path)
    if owner is not None:
        folder = folder.of_run(owner.id)
        folder.check_owner(owner)
    claim = _claimed(folder.store, owner, dry_run, progress)
    with _locked([run_folder(path), _locked_store(folder)], dry_run), claim:
        removable = folder.removable(keep)
        leftovers = folder.leftovers()
        kept = tuple(step for step in folder.steps() if step not in removable)
        size = sum(disk_bytes(folder.store, folder_of(step)) for step in removable)
        size += sum(disk_bytes(folder.store, *each) for each in leftovers)
        names = tuple(f"{name}/{file}" if file else f"{name}/" for name, file in leftovers)
        if not dry_run:
            progress.start("delete", len(removable) + len(leftovers), "checkpoints and leftovers")
            for number, step in enumerate(reversed(removable), 1):  # a checkpoint goes before those that it needs
                folder.discard([step])
                progress.advance(number, step=step)
            folder.sweep()
            progress.advance(len(removable) + len(leftovers))
            progress.finish()
    return Pruned(tuple(removable), kept, names, size)


@contextlib.contextmanager
def _locked(places: Sequence[Path | None], dry_run: bool) -> Generator[None]:
    """Locks these folders as training does. A dry run creates no lock file where there was none."""
    with contextlib.ExitStack() as stack:
        for place in places:
            if place is not None and not (dry_run and not (place / LOCK_FILE).exists()):
                try:
                    stack.enter_context(locked_folder(place, "training"))
                except RunFolderError as error:
                    raise RunFolderError(error.problem, _HINT) from None
        yield


@contextlib.contextmanager
def _claimed(store: Store, owner: Owner | None, dry_run: bool, progress: Progress) -> Generator[None]:
    """Holds the claim to an object store, as a training on another host may be writing there."""
    if dry_run or not isinstance(store, ObjectStore):
        yield
        return
    assert owner is not None
    with claimed(store, owner, note=progress.note):
        yield


def _owner(store: Store, path: Path) -> Owner | None:
    """Returns the run whose checkpoints are pruned; None if these are in its own folder, or the folder that was named.

    Raises:
        RunFolderError: the checkpoints are elsewhere, and the run's id, which says whether they belong to it, cannot be
            read.
    """
    run = run_folder(path)
    place = (path if run is None else run) / ENVIRONMENT
    damage = Damage(RunFolderError, "restore the file")
    found = recorded_run_id(place.parent, damage)
    if found is not None:
        return Owner(str(place.parent), found)
    if isinstance(store, LocalStore) and (run is None or store.root.parent.resolve() == run.resolve()):
        return None
    raise damage.of(place, "the run's id cannot be read")


def _locked_store(folder: CheckpointFolder) -> Path | None:
    """Returns the folder of the checkpoints if training locks it by itself (``checkpoints.store``), otherwise None."""
    root = folder.store.root if isinstance(folder.store, LocalStore) else None
    return root if root is not None and (root / LOCK_FILE).exists() else None


_HINT = "wait for it or stop it; training prunes by itself, to as many as training.keep says"
