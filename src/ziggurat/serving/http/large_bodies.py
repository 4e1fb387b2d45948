"""Reads large bodies in a thread, one after another, so that the event loop goes on answering others.

To look at each of millions of values takes seconds, and a body of 16 MiB may hold as many.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ziggurat.serving.http.refusals import HttpRefused

Read = TypeVar("Read")
LARGE_BYTES = 256 * 2**10
"""Bodies above it are read in the thread; a smaller one takes milliseconds."""


class LargeBodies:
    """Reads bodies: small ones at once, large ones in a thread of its own."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    async def read(self, body: bytes, read: Callable[[], Read]) -> Read:
        """Returns what ``read`` makes of a body.

        Raises:
            HttpRefused: ``read`` raises it.
        """
        if len(body) <= LARGE_BYTES:
            return read()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "large-body")
        found = await asyncio.get_running_loop().run_in_executor(self._thread, _read, read)
        if isinstance(found, HttpRefused):
            raise found
        return found

    def close(self) -> None:
        """Ends the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def _read(read: Callable[[], Read]) -> Read | HttpRefused:
    with _no_collection():
        try:
            return read()
        except HttpRefused as refused:  # without the frames, which hold what was read
            return refused.with_traceback(None)


@contextlib.contextmanager
def _no_collection() -> Generator[None]:
    """Keeps the garbage collector from looking again and again at the values that are made: it holds all threads."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
