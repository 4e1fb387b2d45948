"""Ranks that are forks of their launcher, which has imported the engine before: once instead of once for each rank."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import Any

from ziggurat.core.engine import installed_engine

_ENGINE = "torchrec"


def can_fork() -> bool:
    """Returns whether ranks can be forks: on Linux, with an engine for the CPU.

    CUDA cannot be used in a fork of a process that has asked for its devices, which imports may do.
    """
    return sys.platform == "linux" and installed_engine().flavour == "cpu"


@contextlib.contextmanager
def imported_engine(threads: str) -> Generator[None]:
    """Imports what takes most of a rank's start, and keeps it where forks can share its memory.

    Args:
        threads: the value of OMP_NUM_THREADS in the ranks; OpenMP reads it when torch is imported.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads
    try:
        importlib.import_module(_ENGINE)
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    try:
        yield
    finally:
        gc.unfreeze()


class ForkedRank:
    """A fork of this process, with the methods of :class:`subprocess.Popen` that a launcher needs.

    Attributes:
        pid: the process's id.
        returncode: its exit status; negative for the signal that ended it; None while it runs.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit status; None while the process runs."""
        return self._collect(os.WNOHANG)

    def wait(self) -> int:
        """Waits until the process has ended, and returns its exit status."""
        status = self._collect(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """Ends the process by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _collect(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                found, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # a signal's handler has collected it, or SIGCHLD is ignored: as Popen, take 0
                self.returncode = 0 if self.returncode is None else self.returncode
            else:
                if found:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork_rank(
    environment: Mapping[str, str], handlers: Mapping[signal.Signals, Any], close: Collection[int]
) -> ForkedRank | None:
    """Forks this process. Returns the new process; None in that process.

    Args:
        environment: variables to set in the new process.
        handlers: handlers of signals to set in it; until then it receives none of these.
        close: descriptors to close in it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        pid = os.fork()
        if pid:
            return ForkedRank(pid)
        os.setsid()
        os.environ.update(environment)
        for descriptor in close:
            os.close(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _use_threads(environment.get("OMP_NUM_THREADS", ""))
        _offer_to_be_killed()
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _offer_to_be_killed() -> None:
    """Makes the kernel, when memory runs out, end a rank rather than the launcher, which names it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("100", encoding="ascii")


def _use_threads(threads: str) -> None:
    """Sets the number of threads in case that torch had been imported before, with another."""
    import torch

    if threads.isdigit() and int(threads) > 0:
        torch.set_num_threads(int(threads))
