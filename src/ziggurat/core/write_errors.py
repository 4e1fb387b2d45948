"""Explains failed writes to the user: the target, the space left, and who may write there."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

from ziggurat.core.errors import DataError


@contextlib.contextmanager
def explained_writes(path: Path) -> Generator[None]:
    """Turns errors while ``path`` is written, such as a full disk or a missing permission, into errors with a hint.

    Raises:
        DataError: in place of the OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            free = shutil.disk_usage(_existing(path)).free / 2**20
            raise DataError(
                f"{path}: no space left on the device ({free:.0f} MiB free); the unfinished file was not kept",
                "free some space, or point the output at another disk; what was finished before is kept",
            ) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise _no_permission(_target(path, error), error) from error
        if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError):
            raise DataError(
                f"{path}: cannot be written: {error.strerror}", "choose a path whose parents are folders"
            ) from error
        if isinstance(error, FileNotFoundError) and _is_temporary(error):
            raise DataError(f"{path}: cannot be written: {error.strerror}", "choose another place for it") from error
        raise


def check_file_target(path: Path) -> None:
    """Checks, before any work is done, that a file can be written to ``path``.

    Raises:
        DataError: ``path`` is a folder.
    """
    if path.is_dir():
        raise DataError(f"{path}: is a folder, not a file", "name a file in it")


def make_folder_of(path: Path) -> None:
    """Makes the folder of a file, before the work whose result is written to it, and checks that it can be written.

    Raises:
        DataError: the folder cannot be made, or it is not writable; or ``path`` is a folder.
    """
    check_file_target(path)
    try:
        with explained_writes(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".", suffix=".part", dir=path.parent):
                pass
    except FileNotFoundError as error:
        raise DataError(
            f"{path}: its folder cannot be made: {error.strerror}", "choose another place for it"
        ) from error


def _target(path: Path, error: OSError) -> Path:
    """Returns the file that ``error`` names, as the user knows it: ``path`` if it is a temporary file for that."""
    return path if _is_temporary(error) or not error.filename else Path(str(error.filename))


def _is_temporary(error: OSError) -> bool:
    parts = Path(str(error.filename)).parts
    return any(part.startswith(".") and part.endswith((".part", ".old")) for part in parts)


def _no_permission(target: Path, error: OSError) -> DataError:
    if error.errno == errno.EROFS:
        return DataError(
            f"{target}: no permission to write: it is on a read-only file system", "choose another place for it"
        )
    is_protected = _has_access(target, os.F_OK) and not _has_access(target, os.W_OK)
    place = target if is_protected else _existing(target.parent)
    status = place.stat()
    what = "folder" if place.is_dir() else "file"
    who = f"the {what} {place} belongs to {_user(status.st_uid)} ({stat.filemode(status.st_mode)})"
    mine = status.st_uid == os.geteuid()
    allow = f"allow it: chmod u+w {place}" if mine else f"ask {_user(status.st_uid)} to let you write there"
    return DataError(
        f"{target}: no permission to write: {who}, you are {_user(os.geteuid())}",
        f"choose another place for it, or {allow}",
    )


def _existing(path: Path) -> Path:
    """Returns ``path``, or the nearest folder above it that exists."""
    return next((place for place in (path, *path.absolute().parents) if _has_access(place, os.F_OK)), Path("/"))


def _has_access(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"
