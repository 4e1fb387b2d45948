"""Opens a checkpoint of either format."""

from __future__ import annotations

from ziggurat.checkpoint.block_reader import BlockCheckpointReader
from ziggurat.checkpoint.format.legacy import STATE_FILE
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE
from ziggurat.checkpoint.legacy_reader import LegacyCheckpointReader
from ziggurat.checkpoint.reader import CheckpointReader, folder_of
from ziggurat.checkpoint.store.store import LocalStore, Store


def open_checkpoint(store: Store, step: int) -> CheckpointReader:
    """Returns a reader of the checkpoint of a step.

    Raises:
        RunFolderError: the checkpoint is missing or damaged, or needs one that no longer exists.
    """
    folder = folder_of(step)
    if isinstance(store, LocalStore) and MANIFEST_FILE not in store.files(folder) and STATE_FILE in store.files(folder):
        return LegacyCheckpointReader(store, folder)
    return BlockCheckpointReader(store, step)
