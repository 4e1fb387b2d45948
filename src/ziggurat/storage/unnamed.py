"""Files without a name, past the page cache: gone with the process that made them, however it ends."""

from __future__ import annotations

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
    cached, name = tempfile.mkstemp(prefix=".rows-", dir=folder)
    path = Path(name)
    try:
        found = _direct(path) if direct else None
    finally:
        path.unlink()
    if found is None:
        return cached, False, SECTORS[0]
    os.close(cached)
    return found[0], True, found[1]


def _direct(path: Path) -> tuple[int, int] | None:
    """A descriptor that passes by the page cache, and in multiples of how many bytes; None where there is none."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None
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
