"""Temporary files and folders of which a killed process leaves nothing behind for good."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.files import check_file_target, explained_writes, sweep, sync

_DESCRIPTORS = Path("/proc/self/fd")


@contextlib.contextmanager
def unnamed_file(path: Path) -> Generator[Path]:
    """As :func:`~ziggurat.core.files.atomic_file`, for a file that takes long to write.

    Nothing remains of it however the process ends, see :func:`pending_file`.

    Raises:
        DataError: as for an atomic file; ``path`` is unchanged.
    """
    with explained_writes(path), pending_file(path) as pending:
        yield pending.path
        pending.put_in_place()


@contextlib.contextmanager
def pending_file(path: Path) -> Generator[PendingFile]:
    """Yields a file that appears at ``path`` only if it is put there.

    Until then it has no name, so that the kernel deletes it with the process. On a file system that has no such files,
    it is a temporary file next to ``path``.

    Raises:
        DataError: the folder is not writable, or ``path`` is a folder.
    """
    check_file_target(path)
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
    pending = PendingFile(path)
    try:
        yield pending
    finally:
        pending.close()


class PendingFile:
    """A file that has no name yet.

    Args:
        target: the name that it may get.

    Attributes:
        path: where it can be written, by this process only.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._named = target.with_name(f".{target.name}.{os.getpid()}.part")
        self._descriptor = _open_unnamed(target.parent)
        self.path = self._named if self._descriptor is None else _DESCRIPTORS / str(self._descriptor)

    def put_in_place(self) -> None:
        """Syncs the file and gives it its name; a file of this name is replaced.

        Raises:
            DataError: the disk is full, or the folder is no longer writable. The file of this name is unchanged.
        """
        with explained_writes(self._target), _naming:
            sync(self.path)
            if self._descriptor is not None:  # a link cannot replace a file, a rename can
                self._named.unlink(missing_ok=True)
                self._link(self.path)
            try:
                self._named.replace(self._target)
            finally:
                self._named.unlink(missing_ok=True)
            sync(self._target.parent)

    def close(self) -> None:
        """Deletes the file if it was not put in place."""
        if self._descriptor is None:
            self._named.unlink(missing_ok=True)
        else:
            os.close(self._descriptor)

    def _link(self, unnamed: Path) -> None:
        folder = os.open(self._named.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:  # given the descriptor of a folder, Python follows the link in /proc to the file itself
            os.link(unnamed, self._named.name, dst_dir_fd=folder, follow_symlinks=True)
        except OSError:  # a sandbox may forbid it
            try:
                shutil.copyfile(unnamed, self._named)
                sync(self._named)
            except BaseException:
                self._named.unlink(missing_ok=True)
                raise
        finally:
            os.close(folder)


@dataclass(frozen=True, slots=True)
class TemporaryFolder:
    """A folder for temporary files.

    Attributes:
        path: the folder.
        descriptor: a descriptor with the lock that protects it. A child process that inherits it keeps the folder from
            being swept.
    """

    path: Path
    descriptor: int


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Generator[TemporaryFolder]:
    """Yields a new folder, which is deleted afterwards; deletes those that killed processes have left.

    A folder is locked by its owner, and the kernel ends the lock with the processes that hold it, so that the folder of
    a living one is never mistaken for one of these. Ids of processes, which are used again, play no part.

    Args:
        prefix: the beginning of the folder's name, the same for all folders of one kind.
        parent: where to create it; default: the system's folder for temporary files.

    A process that is forked meanwhile leaves the folder to this one.
    """
    owner = os.getpid()
    where = Path(tempfile.gettempdir()) if parent is None else parent
    _sweep(where, prefix)
    path, descriptor = _make_locked(where, prefix)
    try:
        yield TemporaryFolder(path, descriptor)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)


def _open_unnamed(folder: Path) -> int | None:
    """Returns the descriptor of a new file without a name; None if the system or the file system has none."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not _DESCRIPTORS.is_dir():
        return None
    try:
        return os.open(folder, flag | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


_naming = threading.Lock()
"""Held while a file gets its name: two threads may write to one target."""


def _make_locked(where: Path, prefix: str) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=where))
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks: nobody sweeps there
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.is_dir():  # or another process had swept it before it was locked
            return path, descriptor
        os.close(descriptor)


def _sweep(where: Path, prefix: str) -> None:
    """Deletes the folders of this user in ``where`` whose names begin with ``prefix`` and that nobody has locked."""
    with contextlib.suppress(OSError):
        for path in [entry for entry in where.iterdir() if entry.name.startswith(prefix)]:
            with contextlib.suppress(OSError):
                _delete_if_unlocked(path)


def _delete_if_unlocked(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)
