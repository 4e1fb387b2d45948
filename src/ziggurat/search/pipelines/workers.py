"""Where evaluations are computed: in this process, or in several that each hold the table and a cache of blocks."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.search.pipelines.downstream import LogisticRegressionTask, MLPTask
from ziggurat.search.pipelines.evaluation import Assignment, Evaluator, Result
from ziggurat.search.pipelines.table import Table
from ziggurat.training.signals import end_with_parent

_POLL_S = 0.1
_evaluator: Evaluator | None = None


class Judges(Protocol):
    """Computes evaluations, within its context."""

    def __enter__(self) -> Judges: ...

    def __exit__(self, *error: object) -> None: ...

    def results(
        self, asked: Sequence[tuple[Assignment, int]], stopped: Callable[[], bool]
    ) -> Iterator[tuple[int, Result]]:
        """Yields (place in ``asked``, result) as they come; ends early, without the rest, once ``stopped()``."""
        ...


class Workers:
    """Computes evaluations, ``jobs`` at a time.

    Args:
        table: the training rows.
        task: the downstream model.
        seed: as in :class:`Evaluator`.
        jobs: number of processes; with 1 this process computes.
    """

    def __init__(self, table: Table, task: LogisticRegressionTask | MLPTask, seed: int, jobs: int) -> None:
        self._own = Evaluator(table, task, seed) if jobs == 1 else None
        self._pool = None
        self._is_broken = False
        if jobs > 1:
            self._pool = ProcessPoolExecutor(
                jobs, get_context("spawn"), initializer=_begin, initargs=(table, task, seed, os.getpid())
            )

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is None:
            return
        if self._is_broken:
            # A process that was killed while it sent a result holds the lock of all others, which ignore SIGTERM.
            for process in list((self._pool._processes or {}).values()):  # pyright: ignore[reportPrivateUsage]
                process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def results(
        self, asked: Sequence[tuple[Assignment, int]], stopped: Callable[[], bool]
    ) -> Iterator[tuple[int, Result]]:
        if self._own is not None:
            for place, (assignment, repeat) in enumerate(asked):
                if stopped():
                    return
                yield place, self._own.evaluate(assignment, repeat)
            return
        assert self._pool is not None
        with _children_ignore_interrupts():
            places: dict[Future[Result], int] = {
                self._pool.submit(_evaluate, dict(assignment), repeat): place
                for place, (assignment, repeat) in enumerate(asked)
            }
        waiting = set(places)
        while waiting:
            if stopped():
                for future in waiting:
                    future.cancel()
                waiting = {future for future in waiting if not future.cancelled()}
            done, waiting = wait(waiting, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                try:
                    result = future.result()
                except BrokenProcessPool:
                    self._is_broken = True
                    if stopped():
                        return
                    raise EnvironmentMismatch(
                        "a process that evaluates pipelines was killed, as happens where memory ends",
                        "use fewer --jobs or --rows; the same command resumes the search",
                    ) from None
                yield places[future], result


@contextlib.contextmanager
def _children_ignore_interrupts() -> Generator[None]:
    """Has processes that start meanwhile leave Ctrl-C to this one from their first moment, not after their imports."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(table: Table, task: Any, seed: int, parent: int) -> None:
    """Prepares a process of the pool: it leaves Ctrl-C to its parent, and ends when that is gone."""
    global _evaluator
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent(parent)
    _evaluator = Evaluator(table, task, seed)


def _evaluate(assignment: Assignment, repeat: int) -> Result:
    assert _evaluator is not None
    return _evaluator.evaluate(assignment, repeat)
