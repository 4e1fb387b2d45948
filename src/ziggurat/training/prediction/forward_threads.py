"""Threads that predict batches side by side, and results that are asked for ahead but used in order."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ziggurat.core.memory import explained_thread_limit

T = TypeVar("T")
S = TypeVar("S")


@contextlib.contextmanager
def forward_threads(device: torch.device) -> Generator[ThreadPoolExecutor]:
    """Yields threads in which torch computes with one thread each: on the CPU as many as torch would use, else one.

    A batch per thread keeps the cores busier than threads that share every operation of one batch: these wait for each
    other dozens of times a batch, and for cores that read and write files meanwhile. At the end, work that has not
    begun is dropped.

    Args:
        device: the device of the model.
    """
    threads = torch.get_num_threads()
    count = threads if device.type == "cpu" else 1
    begun, released = threading.Semaphore(0), threading.Event()

    def begin() -> None:
        try:
            if device.type == "cpu":
                torch.get_num_threads()  # else this thread's first operation would take over the setting of the others
                torch.set_num_threads(1)
        finally:
            begun.release()
        released.wait()  # a thread that is idle would be given the work for which another one is started

    pool = ThreadPoolExecutor(count, "ziggurat-forward", begin)
    try:
        with explained_thread_limit():
            for _ in range(count):
                pool.submit(int)
        for _ in range(count):
            begun.acquire()
        if device.type == "cpu":
            torch.set_num_threads(threads)  # torch passes the last setting on to threads made later
        released.set()
        yield pool
    finally:
        released.set()
        pool.shutdown(cancel_futures=True)


def one_ahead(items: Iterator[T], start: Callable[[T], Callable[[], S]]) -> Iterator[tuple[T, S]]:
    """Yields each item with its result, in order; the next item's work is started before a result is waited for.

    Args:
        items: the items.
        start: starts the work for an item; what it returns waits for the result.

    An error that an item or its work raises is raised in the item's turn.
    """
    pending: deque[tuple[T, Callable[[], S]]] = deque()
    failure: Exception | None = None
    while failure is None:
        try:
            item = next(items)
            pending.append((item, start(item)))
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - raised below, after the results of earlier items
            failure = error
        if len(pending) > 1:
            waiting, result = pending.popleft()
            yield waiting, result()
    while pending:
        waiting, result = pending.popleft()
        yield waiting, result()
    if failure is not None:
        raise failure
