"""Large tensors come and go in every step: their memory stays with the process instead of going back to the kernel.

glibc maps a block of 32 MiB or more (less at first) straight from the kernel and unmaps it when it is freed, so that a
step which makes the same activations as the last one faults in every page of them anew, zeroed. On batches of 4,096
rows that was a quarter of a Wukong's training step. With the two settings below, blocks come from the heap, whose top
is not cut off.
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
    """Tell the C library to reuse freed memory, for the whole process and from now on.

    Numbers do not change. The process stays as large as it has once been, and grows somewhat larger, because blocks of
    different sizes do not fill each other's gaps: 1.36 instead of 1.06 GiB at its peak for that Wukong.

    Args:
        largest: bytes up to which a block comes from the heap, below 2 GiB.

    Returns:
        Whether the C library took both settings. Others than glibc know neither, and nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, largest)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
