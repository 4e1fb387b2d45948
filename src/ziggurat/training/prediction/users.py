"""Counts the calls that use something, so that it can be released when none does."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Generator

from ziggurat.core.errors import ForkedProcess, PredictorClosed


class Users:
    """The calls that use a predictor.

    Args:
        name: the predictor, for messages.

    Attributes:
        ended: whether further uses are refused.
    """

    def __init__(self, name: str) -> None:
        self._name, self._process = name, os.getpid()
        self._changed = threading.Condition()
        self._count = 0
        self._released = False
        self.ended = False

    @contextlib.contextmanager
    def entered(self) -> Generator[None]:
        """Counts a use for the time of the context.

        Raises:
            PredictorClosed: :meth:`end` was called.
            ForkedProcess: this process is a fork; in it, a lock may stay locked forever, so none is taken.
        """
        if os.getpid() != self._process:
            raise ForkedProcess(
                f"{self._name} was opened in process {self._process}, of which this one ({os.getpid()}) is a fork",
                "start processes with multiprocessing.get_context('spawn'), and open a predictor in each",
            )
        with self._changed:
            if self.ended:
                raise self.error()
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def end(self) -> bool:
        """Refuses further uses and waits for those that go on.

        Returns:
            Whether the caller is to release what was used: once, and not in a fork.
        """
        if os.getpid() != self._process:
            return False
        with self._changed:
            self.ended = True
            while self._count:
                self._changed.wait()
            first, self._released = not self._released, True
        return first

    def error(self) -> PredictorClosed:
        """Returns the error for a use after the end."""
        return PredictorClosed(f"{self._name} is closed", "open a new one, or predict inside its `with` block")
