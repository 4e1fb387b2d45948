"""Ctrl-C and SIGTERM as something to look at, so that neither comes between making a host and noting it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType


class Stop:
    """Within the context SIGINT and SIGTERM do no more than set :attr:`signal`; the first one counts."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __enter__(self) -> Stop:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether one has come."""
        return self.signal is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = self.signal or signal.Signals(number)
