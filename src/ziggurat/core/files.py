"""Crash-safe writes: a file or folder is either whole under its final name or not there.

The only I/O in core, because every room that leaves something on disk must leave it the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from ziggurat.core.errors import RunFolderError
from ziggurat.core.write_errors import check_file_target as check_file_target
from ziggurat.core.write_errors import explained_writes as explained_writes

LOCK_FILE = "lock"


@contextlib.contextmanager
def atomic_file(path: Path) -> Generator[Path]:
    """Yield a temporary path beside ``path``; on success fsync it and rename it over ``path``, else delete it.

    Raises:
        DataError: the disk is full or the folder is not writable; ``path`` is untouched, or a folder.
    """
    check_file_target(path)
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, path.name)
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

    An existing folder at ``path`` is replaced only when the new one is whole. POSIX has no rename over a folder that is
    not empty, so the old one steps aside first; :func:`put_back` returns it if the process dies in between.

    Raises:
        DataError: the disk is full or the folder is not writable; ``path`` is untouched.
    """
    with explained_writes(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        put_back(path.parent, path.name)
        sweep(path.parent, path.name)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
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


_LEFT_BEHIND = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)\.(?P<kind>part|old)", re.DOTALL)


def put_back(folder: Path, name: str | None = None) -> None:
    """Return to their names the folders that stepped aside for a new one, whose process died before it was there.

    Args:
        folder: nothing happens where there is none.
        name: only the folder of this name; default: all.
    """
    for path, target, kind in _left_behind(folder, name):
        if kind == "old" and not target.exists():
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                path.rename(target)


def remove(path: Path) -> None:
    """Delete a file, or a folder with all that is in it, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path, name: str | None = None) -> None:
    """Delete what killed processes left half-written in ``folder``; what cannot be deleted stays.

    What a process that still lives is writing stays, and so does every file that is not named as ours are.
    """
    for path, target, kind in _left_behind(folder, name):
        if kind == "part" or target.exists():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def _left_behind(folder: Path, name: str | None) -> Iterator[tuple[Path, Path, str]]:
    """Path, what it was to become or has been, and its kind, of every temporary in ``folder`` whose process is dead."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        found = _LEFT_BEHIND.fullmatch(path.name)
        if found is not None and name in {None, found["name"]} and not _lives(int(found["pid"])):
            yield path, folder / found["name"], found["kind"]


def _lives(pid: int) -> bool:
    """Whether another process has this number. One that had ours is dead: in containers numbers come back."""
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
        lock = (folder / LOCK_FILE).open("a+", encoding="utf-8")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            who = lock.read(200).strip()
            raise RunFolderError(
                f"{folder}: another process is {doing} in this folder{who and f' ({who})'}",
                "wait for it, or use another folder",
            ) from None
        with contextlib.suppress(OSError):  # a full disk is no reason not to work here: some work makes room
            os.ftruncate(lock.fileno(), 0)
            os.write(lock.fileno(), f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
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
