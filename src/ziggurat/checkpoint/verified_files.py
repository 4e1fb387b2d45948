"""Reads manifests and files of checkpoints of format 2, and verifies each file against its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor

from ziggurat.checkpoint.format.blocks import DAMAGED, check_file, contents_in_words, tensors_in
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest, ManifestFile, Reference
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.store import Store, TooLarge
from ziggurat.core.errors import RunFolderError


def read_manifest(store: Store, step: int) -> Manifest:
    """Reads the manifest of the checkpoint of a step.

    Raises:
        RunFolderError: it is missing or damaged, or names another step.
    """
    folder = folder_of(step)
    place = store.where(folder, MANIFEST_FILE)
    manifest = Manifest.from_bytes(store.read(folder, MANIFEST_FILE), place)
    if manifest.step != step:
        raise RunFolderError(f"{place}: is of step {manifest.step}", "move the folder back to its name")
    return manifest


def read_needed(store: Store, manifest: Manifest, needs: Iterable[Reference]) -> Iterator[Manifest]:
    """Reads the manifests of checkpoints on which another one builds, in the order given.

    Args:
        store: the checkpoints.
        manifest: of the checkpoint that needs the others.
        needs: the checkpoints to read.

    Raises:
        RunFolderError: one no longer exists, is damaged, or was overwritten by another checkpoint of the same step.
    """
    for need in needs:
        try:
            found = read_manifest(store, need.step)
        except RunFolderError as error:
            raise RunFolderError(
                f"the checkpoint of step {manifest.step} needs that of step {need.step}: {error.problem}", DAMAGED
            ) from error
        if found.id != need.id:
            raise RunFolderError(
                f"{store.where(folder_of(need.step), MANIFEST_FILE)}: was written again since the checkpoint of step "
                f"{manifest.step}, which needs what was there before",
                DAMAGED,
            )
        if found.tables != manifest.tables or (need == manifest.needs[0]) != (found.kind == "full"):
            raise RunFolderError(
                f"{store.where(folder_of(need.step), MANIFEST_FILE)}: has other tables or another kind than "
                f"the checkpoint of step {manifest.step} expects",
                DAMAGED,
            )
        yield found


def read_file(store: Store, manifest: Manifest, file: ManifestFile) -> bytes:
    """Returns the content of a checkpoint's file, verified.

    Raises:
        RunFolderError: the file is missing, changed, or of another size.
    """
    folder = folder_of(manifest.step)
    try:
        data = store.read(folder, file.name, file.bytes)
    except TooLarge as error:
        raise RunFolderError(f"{error.problem}; it has {contents_in_words(file)}", DAMAGED) from None
    check_file(file, data, store.where(folder, file.name))
    return data


def read_non_table_tensors(store: Store, manifest: Manifest) -> dict[str, Tensor]:
    """Reads all tensors of a checkpoint except rows of tables: ``GROUP/NAME`` -> tensor.

    Raises:
        RunFolderError: as :func:`read_file`.
    """
    found: dict[str, Tensor] = {}
    for file in manifest.files:
        if not file.blocks:
            place = store.where(folder_of(manifest.step), file.name)
            found |= tensors_in(read_file(store, manifest, file), place)
    return found
