"""Which checkpoints of a store are finished, also while another process writes and deletes some."""

from __future__ import annotations

from ziggurat.checkpoint.format.legacy import STATE_FILE
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE
from ziggurat.checkpoint.reader import FOLDER
from ziggurat.checkpoint.store.store import LINK_HINT, LocalStore, Store
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import put_back

_LISTINGS = 8
"""How often the folders are listed at most while checkpoints are written and deleted."""


def finished_steps(store: Store) -> list[int]:
    """Returns the steps of the finished checkpoints, ascending; the newest is never missing for one that replaces it.

    Raises:
        RunFolderError: a symbolic link has the name of a checkpoint's folder.
    """
    if isinstance(store, LocalStore):
        for name in sorted(store.links()):
            if FOLDER.fullmatch(name):
                raise RunFolderError(
                    f"{store.where(name)}: is a symbolic link; checkpoints are neither read nor written nor deleted "
                    "through links",
                    LINK_HINT,
                )
        put_back(store.root)  # folders that a writer of format 1 had moved aside before it died
    steps: list[int] = []
    for _ in range(_LISTINGS):
        folders = _by_step(store)
        # In ascending order: where one was deleted in favour of a newer one, the newer one is finished by then.
        steps = [step for step in folders if {MANIFEST_FILE, STATE_FILE} & set(store.files(folders[step]))]
        if len(steps) == len(folders) or _by_step(store) == folders:
            break  # else one of them may have been deleted for a newer one that was not listed
    return steps


def _by_step(store: Store) -> dict[int, str]:
    """Returns step -> folder, finished or not, ascending."""
    names = [(match, name) for name in store.folders() if (match := FOLDER.fullmatch(name))]
    return dict(sorted((int(match[1]), name) for match, name in names))
