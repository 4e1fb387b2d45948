"""Tunes glibc's malloc to keep the memory of large tensors in the process instead of returning it to the kernel.

glibc maps a block of 32 MiB or more (less at first) straight from the kernel and unmaps it when it is freed. A step
that allocates the same activations as the last one therefore faults in all their pages again, zeroed. On batches of
4,096 rows that took a quarter of a Wukong's training step. With the two settings below, blocks come from the heap,
whose top is not trimmed.
"""

from __future__ import annotations

import ctypes
import sys

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

LARGEST = 2**30
"""Bytes up to which a block comes from the heap; larger ones (tables, mostly) are mapped on their own as before."""

_NEVER = 2**31 - 1


def keep_freed_memory(largest: int = LARGEST) -> bool:
    """Makes the C library reuse freed memory, for the whole process and from now on.

    Computed values do not change. The process keeps its peak size, and the peak is somewhat larger because blocks of
    different sizes do not fill each other's gaps: 1.36 instead of 1.06 GiB for that Wukong.

    Args:
        largest: bytes up to which a block comes from the heap, below 2 GiB.

    Returns:
        Whether the C library accepted both settings. Libraries other than glibc have neither; nothing changes then.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, largest)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
