"""Keeps what native code prints off standard output, which may be the data of a command such as ``plan --json``.

HiGHS has a few ``puts`` that no option silences, such as "HighsMipSolverData::transformNewIntegerFeasibleSolution
tmpSolver.run();". They go to the C library's buffer of file descriptor 1, which Python does not know of.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections.abc import Generator

_STDOUT, _STDERR = 1, 2


class _Redirection:
    """File descriptor 1 as it was, while at least one thread redirects it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._saved: int | None = None

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                _flush()
                self._saved = _duplicate(_STDOUT)
                if self._saved is not None:
                    _point_stdout_to(_STDERR)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._saved is not None:
                _flush()
                os.dup2(self._saved, _STDOUT)
                os.close(self._saved)
                self._saved = None


_redirection = _Redirection()


@contextlib.contextmanager
def native_output_to_stderr() -> Generator[None]:
    """Sends what is written to file descriptor 1 within the context to standard error instead.

    It holds for the whole process: what other threads print meanwhile goes there, too. Contexts of several threads may
    overlap; the last one restores the descriptor.
    """
    _redirection.enter()
    try:
        yield
    finally:
        _redirection.leave()


def _flush() -> None:
    """Writes out what Python and the C library hold back, so that it goes to where it was printed to."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # no stdout, a closed pipe, a closed file
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def _duplicate(descriptor: int) -> int | None:
    """Returns a copy of the descriptor; None if it is not open."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _point_stdout_to(descriptor: int) -> None:
    """Points file descriptor 1 to where another one points, or to nowhere if that is not open."""
    target = _duplicate(descriptor)
    if target is None:
        target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, _STDOUT)
    os.close(target)
