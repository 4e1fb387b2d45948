"""Crash-safe writes: a file or folder is either whole under its final name or not there.

The only I/O in core, because every room that leaves something on disk must leave it the same way.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ziggurat.core.errors import DataError, RunFolderError

LOCK_FILE = "lock"


@contextlib.contextmanager
def atomic_file(path: Path) -> Generator[Path]:
    """Yield a temporary path beside ``path``; on success fsync it and rename it over ``path``, else delete it.

    Raises:
        DataError: the disk is full or the folder is not writable; ``path`` is untouched.
    """
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            yield temporary
            sync(temporary)
            temporary.replace(path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: Path) -> Generator[Path]:
    """Yield a temporary folder beside ``path``; on success fsync its files and rename it to ``path``.

    An existing folder at ``path`` is replaced only when the new one is whole.

    Raises:
        DataError: the disk is full or the folder is not writable; ``path`` is untouched.
    """
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            yield temporary
            for file in temporary.rglob("*"):
                sync(file)
            sync(temporary)
            if path.exists():
                old = path.with_name(f".{path.name}.{os.getpid()}.old")
                path.replace(old)
                temporary.replace(path)
                shutil.rmtree(old)
            else:
                temporary.replace(path)
            sync(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(folder: Path, doing: str) -> Generator[None]:
    """Make ``folder`` if need be and hold it for this process alone; the lock ends with the process, however it ends.

    Args:
        folder: holds the file ``lock`` from then on.
        doing: what another process that holds it is doing, for the message, such as "preparing".

    Raises:
        RunFolderError: another process holds it.
        DataError: it cannot be written.
    """
    with explained_writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK_FILE).open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"{folder}: another process is {doing} in this folder", "wait for it, or use another folder"
            ) from None
        yield


def write_json(path: Path, values: Any) -> None:
    """Atomically write ``values`` as indented JSON."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the device."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained_writes(path: Path) -> Generator[None]:
    """Turn a full disk or a missing permission while writing ``path`` into an error that names the mend."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            parent = next((p for p in path.parents if p.exists()), Path("/"))
            free = shutil.disk_usage(parent).free / 2**20
            raise DataError(
                f"{path}: no space left on the device ({free:.0f} MiB free); nothing half-written was kept",
                "free some space, or point the output at another disk; what was finished before is kept",
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise DataError(
                f"{error.filename or path}: no permission to write",
                f"make {path.parent} writable for this user, or choose another output folder",
            ) from error
        if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
            raise DataError(
                f"{path}: cannot be written: {error.strerror}", "choose a path whose parents are folders"
            ) from error
        raise
