"""Crash-safe writes: under its final name a file or folder is either complete or absent.

Every package that writes to disk does it in the same way. Nothing here follows a symbolic link out of the folder that
it works on: a link is removed or replaced itself, and what it names is left alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from ziggurat.core.errors import RunFolderError
from ziggurat.core.untrusted import is_plain_folder
from ziggurat.core.write_errors import check_file_target as check_file_target
from ziggurat.core.write_errors import explained_writes as explained_writes
from ziggurat.core.write_errors import make_folder_of as make_folder_of

LOCK_FILE = "lock"


class FolderInUse(RunFolderError):
    """Another process holds the lock of a folder."""


@contextlib.contextmanager
def atomic_file(path: Path) -> Generator[Path]:
    """Yields a temporary file next to ``path``. On success it is synced and renamed to ``path``, otherwise deleted.

    It has the permissions that the process gives new files (its umask), whatever its writer does.

    Raises:
        DataError: the disk is full, the folder is not writable, or ``path`` is a folder. ``path`` is unchanged.
    """
    check_file_target(path)
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        mode = _create(temporary)
        try:
            yield temporary
            temporary.chmod(mode)  # safetensors makes files that only their owner may read
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(path: Path) -> Generator[Path]:
    """Yields ``path`` itself, in a new folder that nobody reads before :func:`sync_folder` has returned.

    Of thousands of files, :func:`atomic_file` would spend nearly all time on flushing each to the device.

    Raises:
        DataError: the disk is full, or the folder is not writable.
    """
    with explained_writes(path):
        mode = _create(path)
        yield path
        path.chmod(mode)


def _create(path: Path) -> int:
    """Creates a file, and returns the permissions that the process gives new ones."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flushes all that a folder holds to the device; of many files, the whole file system at once.

    Raises:
        DataError: the device cannot be written.
    """
    with explained_writes(folder):
        content = list(folder.rglob("*"))
        if len(content) < _MANY_FILES or not _sync_file_system(folder):
            for path in content:
                sync(path)
        sync(folder)


def _sync_file_system(folder: Path) -> bool:
    """Flushes a folder's file system; returns whether this system offers that."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):
        return False
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if library.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
    return True


@contextlib.contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """Yields a temporary folder next to ``path``. On success its files are synced and it is renamed to ``path``.

    An existing folder at ``path`` is replaced only when the new one is complete. POSIX cannot rename over a folder that
    is not empty, so the old one is moved aside first; :func:`put_back` restores it if the process dies in between.

    Raises:
        DataError: the disk is full or the folder is not writable. ``path`` is unchanged.
    """
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_back(path.parent, path.name)
        sweep(path.parent, path.name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        temporary.mkdir()
        try:
            yield temporary
            sync_folder(temporary)
            if path.exists() and not path.is_symlink():
                old = path.with_name(f".{path.name}.{os.getpid()}.old")
                path.replace(old)
                temporary.replace(path)
                shutil.rmtree(old)
            else:
                if path.is_symlink():
                    path.unlink()
                temporary.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


_MANY_FILES = 64
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]{1,9})\.(?P<kind>part|old)", re.DOTALL)


def put_back(folder: Path, name: str | None = None) -> None:
    """Renames folders back that :func:`atomic_folder` moved aside, if its process died before the new one was in place.

    Args:
        folder: where to look; it need not exist.
        name: only the folder of this name; default: all.
    """
    for path, target, kind in _abandoned(folder, name):
        if kind == "old" and not os.path.lexists(target) and is_plain_folder(path):
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path.rename(target)


def remove(path: Path) -> None:
    """Deletes a file, a folder with its content, or a symbolic link itself, if it exists."""
    if is_plain_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Deletes temporary files and folders in ``folder`` whose processes are dead. What cannot be deleted stays.

    Args:
        folder: where to look; it need not exist.
        name: only the temporaries of this target; default: all.
    """
    for path, target, kind in _abandoned(folder, name):
        if kind == "part" or os.path.lexists(target):
            if is_plain_folder(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def _abandoned(folder: Path, name: str | None) -> Iterator[tuple[Path, Path, str]]:
    """Yields path, target and kind of every temporary in ``folder`` whose process is dead.

    The kind is ``part`` for a new file or folder, or ``old`` for a folder that was moved aside.
    """
    start = "." if name is None else f".{name}."
    for entry in [each.name for each in os.scandir(folder)] if folder.is_dir() else ():
        if not entry.startswith(start):
            continue
        found = _TEMPORARY.fullmatch(entry)
        if found is not None and name in {None, found["name"]} and not _other_is_alive(int(found["pid"])):
            yield folder / entry, folder / found["name"], found["kind"]


def _other_is_alive(pid: int) -> bool:
    """Returns whether another process has this id.

    A file with this process's own id is from a dead process: in containers process ids recur.
    """
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def locked_folder(folder: Path, doing: str, *, shared: bool = False) -> Generator[None]:
    """Locks ``folder`` for this process, and creates it if needed. The lock ends with the process, however it ends.

    Args:
        folder: the folder to lock; it gets a file ``lock``, which stays.
        doing: what another process that holds the lock is doing, for the message, such as "preparing".
        shared: whether others may share the lock, while nobody has it alone.

    Raises:
        FolderInUse: another process holds the lock.
        RunFolderError: the lock is a symbolic link or no plain file.
        DataError: the folder cannot be written.
    """
    with explained_writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = _opened_lock(folder / LOCK_FILE)
    try:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 200, 0).decode("utf-8", "replace").strip()
            holder = f" ({holder})" if holder.isprintable() and holder else ""
            raise FolderInUse(
                f"{folder}: another process is {doing} in this folder{holder}", "wait for it, or use another folder"
            ) from None
        if not shared and os.fstat(lock).st_nlink <= 1:  # otherwise it is also a file elsewhere, which must not change
            with contextlib.suppress(OSError):  # a full disk must not prevent work that frees space
                os.ftruncate(lock, 0)
                os.write(lock, f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(lock)


def _opened_lock(path: Path) -> int:
    """Returns a descriptor of the lock file, which is created if needed.

    Raises:
        RunFolderError: it is a symbolic link or no regular file; then it is neither followed nor changed.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    hint = "somebody else has put it there: delete it, and check what else is in that folder"
    try:
        lock = os.open(path, flags, 0o666)
    except OSError as error:
        faults = {errno.ELOOP: "is a symbolic link, which is not followed"}
        faults |= dict.fromkeys((errno.EISDIR, errno.ENXIO, errno.ENODEV), "is no plain file")
        if error.errno in faults:
            raise RunFolderError(f"{path}: {faults[error.errno]}", hint) from None
        raise
    if not stat.S_ISREG(os.fstat(lock).st_mode):
        os.close(lock)
        raise RunFolderError(f"{path}: is no plain file", hint)
    return lock


def write_json(path: Path, values: Any) -> None:
    """Writes ``values`` as indented JSON, atomically."""
    with atomic_file(path) as temporary:
        temporary.write_text(json_text(values), encoding="utf-8")


def json_text(values: Any) -> str:
    """Returns ``values`` as indented JSON."""
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, to the device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache(name: str) -> Path:
    """Returns the user's folder for one kind of what may be made anew, in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ziggurat" / name
