"""A pool of threads that stops quickly: after an error or Ctrl-C, no further task is started."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor


@contextlib.contextmanager
def workers(threads: int, name: str) -> Generator[ThreadPoolExecutor]:
    """Provides a pool; at the end of the ``with`` statement, queued tasks are dropped and running ones are awaited."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
