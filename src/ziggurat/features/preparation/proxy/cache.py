"""The folders of trained proxies in the user's cache: who holds one, and which are deleted when all are too large.

A preparation holds a folder alone while it trains the proxy, and together with others until it has fitted its tables. A
lock lies beside the folders, so that it outlives the folder that it is about.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Generator
from pathlib import Path

from ziggurat.core.files import FolderInUse, locked_folder, user_cache
from ziggurat.core.progress import Progress

MOST_BYTES = 4 << 30
_POLL_S = 0.2


def cache_folder() -> Path:
    """Returns the folder of all trained proxies."""
    return user_cache("proxies")


def lock_of(folder: Path) -> Path:
    """Returns the folder with the lock of a proxy's folder."""
    return user_cache("proxies.locks") / folder.name


@contextlib.contextmanager
def held(folder: Path, progress: Progress, *, shared: bool) -> Generator[None]:
    """Holds the folder of a proxy, and waits while others prevent it.

    Args:
        folder: the folder.
        progress: where to note that it waits.
        shared: whether others may use it too.
    """
    with contextlib.ExitStack() as stack:
        waits = False
        while True:
            try:
                stack.enter_context(locked_folder(lock_of(folder), "using the proxy of the same rows", shared=shared))
                break
            except FolderInUse as error:
                if not waits:
                    progress.note(f"waiting: {error.problem}")
                waits = True
                time.sleep(_POLL_S)
        yield


def prune() -> None:
    """Deletes the folders that were used longest ago while all together are too large, but none that is held."""
    used: list[tuple[float, Path]] = []
    for folder in cache_folder().iterdir():
        with contextlib.suppress(FileNotFoundError):  # another preparation has just deleted it
            if folder.is_dir():
                used.append((folder.stat().st_mtime, folder))
    total = 0
    for _, folder in sorted(used, reverse=True):
        total += _bytes_of(folder)
        if total > MOST_BYTES:
            with contextlib.suppress(FolderInUse), locked_folder(lock_of(folder), "deleting old proxies"):
                shutil.rmtree(folder, ignore_errors=True)


def _bytes_of(folder: Path) -> int:
    """Returns the bytes of a folder's files, without those that are deleted meanwhile."""
    total = 0
    with contextlib.suppress(FileNotFoundError):
        for file in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += file.stat().st_size
    return total
