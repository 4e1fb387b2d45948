"""Records Ctrl-C and SIGTERM instead of raising, so that no signal interrupts the creation of a host."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Stop:
    """Records the first SIGINT or SIGTERM within its context.

    Attributes:
        signal: the recorded signal, or None.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._record) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Returns whether a signal was received."""
        return self.signal is not None

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
