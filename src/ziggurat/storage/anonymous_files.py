"""Anonymous files that bypass the page cache; they disappear with the process, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
from pathlib import Path

SECTORS = (512, 4096)
"""Alignments of offsets, sizes and memory that devices may require, in bytes, tried in this order."""


def free_bytes(folder: Path) -> int:
    """Returns the bytes available to unprivileged users on the folder's file system."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def allocate(file: int, size: int) -> None:
    """Reserves ``size`` bytes on disk for a file.

    On a file system that cannot reserve space, the file gets this length and is sparse.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while libc.fallocate64(file, 0, 0, size):
        problem = ctypes.get_errno()
        if problem in {errno.EOPNOTSUPP, errno.ENOSYS}:
            os.ftruncate(file, size)
            return
        if problem != errno.EINTR:
            raise OSError(problem, os.strerror(problem))


def anonymous_file(folder: Path, direct: bool) -> tuple[int, bool, int]:
    """Creates an anonymous file in ``folder``.

    Args:
        folder: created if it does not exist.
        direct: whether to bypass the page cache, if the file system can.

    Returns:
        The descriptor, whether the file bypasses the page cache, and the alignment in bytes that it requires.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = _open_direct(folder) if direct else None
    return (found[0], True, found[1]) if found else (_open(folder), False, SECTORS[0])


def _open_direct(folder: Path) -> tuple[int, int] | None:
    """Returns a descriptor that bypasses the page cache and its alignment; None if the file system cannot do that."""
    try:
        file = _open(folder, os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
    buffer = mmap.mmap(-1, SECTORS[-1])
    for sector in SECTORS:
        try:
            os.pwritev(file, [memoryview(buffer)[:sector]], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                os.close(file)
                raise
        else:
            return file, sector
    os.close(file)
    return None


def _open(folder: Path, flags: int = 0) -> int:
    """Opens a file without a name, or one whose name is removed at once if the file system cannot do that."""
    flags |= os.O_RDWR | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    descriptor, name = tempfile.mkstemp(prefix=".rows-", dir=folder)
    try:
        return os.open(name, flags)
    finally:
        os.close(descriptor)
        Path(name).unlink()
