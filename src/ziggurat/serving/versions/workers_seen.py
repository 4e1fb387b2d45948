"""Which version each worker of a host has, so that a change can be seen to have reached all of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from ziggurat.core.files import explained_writes

WORKERS = "workers"
_DIGITS = 12


class WorkerMark:
    """This worker's mark, a locked file with the number of its version; it ends with the process.

    Args:
        root: the folder of versions.
    """

    def __init__(self, root: Path) -> None:
        folder = root / WORKERS
        with explained_writes(folder):
            folder.mkdir(exist_ok=True)
            self._path = folder / str(os.getpid())
            self._file = _locked(self._path)
            os.ftruncate(self._file, 0)

    def set(self, number: int) -> None:
        """Notes that this worker predicts every further request with this version."""
        os.pwrite(self._file, f"{number:0{_DIGITS}d}".encode(), 0)

    def close(self) -> None:
        """Removes the mark."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)


def workers_seen(root: Path) -> dict[int, int]:
    """Returns worker -> number of its version, for those that live and have one."""
    found: dict[int, int] = {}
    folder = root / WORKERS
    for name in sorted(path.name for path in folder.iterdir()) if folder.is_dir() else ():
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError, ValueError):
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _lock(descriptor, fcntl.LOCK_SH):
                    if _lock(descriptor, fcntl.LOCK_EX) and os.fstat(descriptor).st_nlink:
                        (folder / name).unlink(missing_ok=True)
                else:
                    found[int(name)] = int(os.pread(descriptor, _DIGITS, 0))
            finally:
                os.close(descriptor)
    return found


def wait_for_workers(root: Path, number: int, timeout_s: float) -> bool:
    """Waits until all workers have a version; returns whether they do.

    A worker that is starting has none yet; it looks which version is served after it has noted its own, and before it
    answers.
    """
    until = time.monotonic() + timeout_s
    while any(each != number for each in workers_seen(root).values()):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _locked(path: Path) -> int:
    """Opens a mark and locks it; again if a process that took it for a dead worker's removed it in between."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # only who has the lock removes a mark
            return descriptor
        os.close(descriptor)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
