"""How a process is asked to end: Ctrl-C and SIGTERM become a request to save and stop, of which a second one stops at
once; a process that serves another ends with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from types import FrameType, TracebackType

_PR_SET_PDEATHSIG = 1


class StopRequest:
    """Within the context, the first SIGINT or SIGTERM sets :attr:`signal`; the second gets the default treatment."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._previous[each] = signal.signal(each, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)  # pyright: ignore[reportArgumentType] - what signal.signal returned
        self._previous.clear()


def end_with_parent(parent: int) -> None:
    """Has the kernel end this process when the thread that started it ends, even by SIGKILL.

    Args:
        parent: the id of the process that started it.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one has ended")
