"""A pool of threads that lets go at once: after an error or Ctrl-C, what has not begun is not begun."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def workers(threads: int, name: str) -> Generator[ThreadPoolExecutor]:
    """A pool for the body of the ``with``; tasks still waiting when it ends are dropped, those running are awaited."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
