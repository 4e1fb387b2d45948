"""Files without a name, past the page cache: gone with the process that made them, however it ends."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
from pathlib import Path

SECTORS = (512, 4096)
"""That devices want offsets, sizes and memory to be multiples of, tried in this order."""


def free_bytes(folder: Path) -> int:
    """On the disk of a folder, for whoever asks."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def allocate(file: int, size: int) -> None:
    """Have blocks for so many bytes; where a file system cannot promise them, the file is as long and has holes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while libc.fallocate64(file, 0, 0, size):
        problem = ctypes.get_errno()
        if problem in {errno.EOPNOTSUPP, errno.ENOSYS}:
            os.ftruncate(file, size)
            return
        if problem != errno.EINTR:
            raise OSError(problem, os.strerror(problem))


def unnamed_file(folder: Path, direct: bool) -> tuple[int, bool, int]:
    """A new file in ``folder`` without a name: its descriptor, whether it passes by the page cache, and of how many
    bytes it wants multiples."""
    folder.mkdir(parents=True, exist_ok=True)
    found = _direct(folder) if direct else None
    return (found[0], True, found[1]) if found else (_opened(folder), False, SECTORS[0])


def _direct(folder: Path) -> tuple[int, int] | None:
    """A descriptor that passes by the page cache, and in multiples of how many bytes; None where there is none."""
    try:
        file = _opened(folder, os.O_DIRECT)
    except OSError as error:
        if error.errno == errno.EINVAL:
            return None
        raise
    room = mmap.mmap(-1, SECTORS[-1])
    for sector in SECTORS:
        try:
            os.pwritev(file, [memoryview(room)[:sector]], 0)
        except OSError as error:
            if error.errno != errno.EINVAL:
                os.close(file)
                raise
        else:
            return file, sector
    os.close(file)
    return None


def _opened(folder: Path, flags: int = 0) -> int:
    """It never has a name, where the file system can do that; else for a moment."""
    flags |= os.O_RDWR | os.O_CLOEXEC
    with contextlib.suppress(OSError):
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    made, name = tempfile.mkstemp(prefix=".rows-", dir=folder)
    try:
        return os.open(name, flags)
    finally:
        os.close(made)
        Path(name).unlink()
