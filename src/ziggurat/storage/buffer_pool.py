"""Reusable memory for blocks in transfer: fresh pages cost as much time as the transfer itself."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

MAX_FREE_BYTES = 32 * 2**20
"""Bytes of returned buffers that are kept for reuse."""


class BufferPool:
    """Page-aligned buffers, as O_DIRECT requires. Not thread-safe."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """Returns a buffer of at least ``size`` bytes, which the caller owns until :meth:`give_back`."""
        fitting = [number for number, buffer in enumerate(self._free) if len(buffer) >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
        return np.frombuffer(mmap.mmap(-1, max(mmap.PAGESIZE, 1 << (size - 1).bit_length())), np.uint8)

    def give_back(self, buffer: Bytes) -> None:
        """Returns a buffer of :meth:`take` that is no longer in use; the smallest ones are freed first."""
        self._free.append(buffer)
        self._free.sort(key=len, reverse=True)
        while sum(map(len, self._free)) > MAX_FREE_BYTES:
            self._free.pop()
