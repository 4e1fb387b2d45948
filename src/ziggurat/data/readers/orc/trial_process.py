"""Reads a whole ORC file in a process of its own, which damage may end (:mod:`ziggurat.data.readers.orc.trial`).

It imports pyarrow alone, so that it starts fast. Its argument is one JSON object. Its exit status is 0 if the library
read the file or refused it, and :data:`OUT_OF_MEMORY` if it asked for too much memory; anything else is a crash.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = 3
PIECE_BYTES = 4 * 2**20
"""Most bytes of a remote file that are asked for at once."""


class PipedFile:
    """A file whose bytes the parent process sends: asked for on the standard output, received on the standard input."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._at = size, 0

    def size(self) -> int:
        return self._size

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        left = left if size < 0 else min(size, left)
        pieces: list[bytes] = []
        while left:
            sys.stdout.write(f"{self._at} {min(left, PIECE_BYTES)}\n")
            sys.stdout.flush()
            piece = sys.stdin.buffer.read(min(left, PIECE_BYTES))
            if not piece:
                raise OSError("the file ended early")
            pieces.append(piece)
            self._at += len(piece)
            left -= len(piece)
        return b"".join(pieces)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def read_whole(arguments: dict[str, Any]) -> None:
    """Reads every stripe; what the library refuses with an error is left to the parent process, which gets it too.

    Raises:
        MemoryError: reading takes more memory than is allowed.
    """
    import pyarrow as pa
    import pyarrow.orc

    pa.set_memory_pool(pa.system_memory_pool())  # others reserve a gibibyte, and so do a few threads
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    _limit(arguments["memory_bytes"], arguments["seconds"])
    path = arguments["path"]
    with _left_to_the_parent():
        stored = pa.PythonFile(PipedFile(arguments["size"]), "r") if path is None else pa.OSFile(path)
        orc = pyarrow.orc.ORCFile(stored)
        if orc.nrows > arguments["rows"]:
            return
        columns = [name for name in orc.schema.names if "." not in name]
        for stripe in range(orc.nstripes):
            read = False
            with _left_to_the_parent():
                orc.read_stripe(stripe)
                read = True
            for name in () if read else columns:
                with _left_to_the_parent():
                    orc.read_stripe(stripe, columns=[name])


@contextlib.contextmanager
def _left_to_the_parent() -> Generator[None]:
    """Ignores errors other than those of memory, which the library does not always tell apart."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        if any(words in str(error) for words in ("bad_alloc", "Cannot allocate memory")):
            raise MemoryError(str(error)) from error


def _limit(memory_bytes: int, seconds: int) -> None:
    """Limits what this process may take from now on."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    for what, limit in (
        (resource.RLIMIT_AS, taken + memory_bytes),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.getrlimit(what)
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(what, (limit, most))


if __name__ == "__main__":
    received = json.loads(sys.argv[1])
    sys.path[:] = received["modules"]
    try:
        read_whole(received)
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
