"""Tunes glibc's malloc so that a large request leaves no trace in the size of the process."""

from __future__ import annotations

import ctypes
import sys

_M_MMAP_THRESHOLD = -3  # <malloc.h>

LARGEST = 8 * 2**20
"""Bytes from which a block is mapped on its own, and returned to the kernel when it is freed."""


def return_freed_memory(largest: int = LARGEST) -> bool:
    """Makes the C library return large blocks to the kernel as soon as they are freed, for the whole process.

    By default glibc keeps what it once had to map, up to 32 MiB at a time, and in several heaps: after three clients
    had sent bad requests of 16 MB for ten seconds, 160 MiB stayed in a reader's process.

    Args:
        largest: bytes up to which a block comes from the heap, and stays in the process.

    Returns:
        Whether the C library accepted the setting. Libraries other than glibc do not have it; nothing changes then.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_THRESHOLD, largest))
