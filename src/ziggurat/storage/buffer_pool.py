"""Memory for blocks on their way, used again: fresh pages cost as much as what moves through them."""

from __future__ import annotations

import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

KEPT = 32 * 2**20
"""Bytes that are kept for the next blocks."""


class BufferPool:
    """Memory that begins at a page, as O_DIRECT wants it. For one thread."""

    def __init__(self) -> None:
        self._free: list[Bytes] = []

    def take(self, size: int) -> Bytes:
        """At least so many bytes, the caller's until they are given back; lost, if they never are."""
        fitting = [number for number, room in enumerate(self._free) if len(room) >= size]
        if fitting:
            return self._free.pop(min(fitting, key=lambda number: len(self._free[number])))
        return np.frombuffer(mmap.mmap(-1, max(mmap.PAGESIZE, 1 << (size - 1).bit_length())), np.uint8)

    def give_back(self, room: Bytes) -> None:
        """What :meth:`take` gave and nobody uses any more; the largest are kept longest."""
        self._free.append(room)
        self._free.sort(key=len, reverse=True)
        while sum(map(len, self._free)) > KEPT:
            self._free.pop()
