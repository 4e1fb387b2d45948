"""Memory that the workers of a server share: anonymous, so that it is gone with the last of them."""

from __future__ import annotations

import ctypes
import mmap
import os
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.serving.artefact.row_codec import Bytes


class SharedMemory:
    """Memory of zeros, which begins at a page. A process that is started with it as an argument gets the same memory.

    Args:
        size: bytes.
        what: what it is for, for messages.

    Attributes:
        size: bytes.
        view: the memory (size,).

    Raises:
        EnvironmentMismatch: the system does not give so much.
    """

    def __init__(self, size: int, what: str) -> None:
        try:
            file = os.memfd_create("ziggurat", os.MFD_CLOEXEC)
            try:
                os.truncate(file, size)
                self.attach(file, size)
            except BaseException:
                os.close(file)
                raise
        except OSError as error:
            problem = f"{size:,} bytes of memory for {what}: the system does not give them ({error.strerror})"
            raise EnvironmentMismatch(problem, "give less with --memory") from error

    def attach(self, file: int, size: int) -> None:
        """Maps the memory of a descriptor, which it takes over."""
        self._map = mmap.mmap(file, size)
        self._file, self.size = file, size
        self.view: Bytes = np.frombuffer(self._map, np.uint8)

    @property
    def address(self) -> int:
        """Where it begins in this process."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def __del__(self) -> None:
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            os.close(file)

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (DupFd(self._file), self.size)


def _attached(file: Any, size: int) -> SharedMemory:
    found = SharedMemory.__new__(SharedMemory)
    found.attach(file.detach(), size)
    return found
